"""A recorded run, run again: a fresh stack takes the recorded events and must answer each with the recorded actions.

Nothing else is needed, as the stack knows no clock, disk, network or chance but through its events. What differs is a fault of the
stack (something in it is not a function of its events), another release, or a record that was changed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from random import Random

import msgspec

from tutti.errors import Damaged, FormatError
from tutti_gateway.core.protocol.actions import Action
from tutti_gateway.core.protocol.codec import decode_lean_actions, decode_lean_event, encode_lean_actions
from tutti_gateway.core.protocol.events import Event, Now
from tutti_gateway.core.stack import Stack
from tutti_gateway.node.replay.recording_format import Header, Raised, Recording, Stepped

_LINE_CHARACTERS_MAX = 1000
_LINES_MAX = 64


class Difference(msgspec.Struct, frozen=True):
    """The first event that was answered differently.

    Attributes:
        number: of the event, from 1.
        mono_us, wall_us: the clocks at it.
        event: what happened.
        recorded, again: what was answered then and now, a line each; an error is one line.
    """

    number: int
    mono_us: int
    wall_us: int
    event: str
    recorded: tuple[str, ...]
    again: tuple[str, ...]


class Rerun(msgspec.Struct, frozen=True):
    """What came of it.

    Attributes:
        header: whose run it was.
        events: how many were answered as recorded.
        first_us, last_us: wall clock of the first and the last event.
        closed: why the record ends; empty if it is `torn`: cut short by a kill.
        raised: how the stack ended, if it did, then and now.
        difference: None if all is the same.
    """

    header: Header
    events: int
    first_us: int
    last_us: int
    closed: str
    torn: bool
    raised: str
    difference: Difference | None


def rerun(path: Path | str, reach: Callable[[int, int], None] = lambda done, size: None) -> Rerun:
    """Run the record of `path` again; `reach` is told of bytes done and in all.

    Raises:
        UsageError: it cannot be opened.
        FormatError: it is no recorded run, or of another form.
        Damaged: something in it is damaged before the end.
    """
    recording = Recording(path)
    try:
        return _rerun(recording, reach)
    finally:
        recording.close()


def _rerun(recording: Recording, reach: Callable[[int, int], None]) -> Rerun:
    stack = Stack(Random, recording.header.config)
    events = first_us = last_us = 0
    raised = ""
    difference = None
    for step in recording:
        reach(recording.done, recording.size)
        first_us, last_us = first_us or step.wall_us, step.wall_us
        difference = _step(stack, step, events + 1)
        if difference is not None:
            break
        raised = step.error if isinstance(step, Raised) else ""
        events += 1
    return Rerun(recording.header, events, first_us, last_us, recording.closed, recording.torn, raised, difference)


def _step(stack: Stack, step: Stepped | Raised, number: int) -> Difference | None:
    """Take the event in again; None if the answer is the recorded one."""
    try:
        event = decode_lean_event(step.event)
        again = _answer(stack, event, Now(step.mono_us, step.wall_us))
        recorded = step.error if isinstance(step, Raised) else bytes(step.actions)
        if recorded == (again if isinstance(again, str) else encode_lean_actions(again)):
            return None
        told = recorded if isinstance(recorded, str) else decode_lean_actions(recorded)
    except FormatError as error:
        raise Damaged(f"event {number} of the record cannot be read by this release: {error}") from error
    return Difference(number, step.mono_us, step.wall_us, _text(event), _lines(told), _lines(again))


def _answer(stack: Stack, event: Event, now: Now) -> Sequence[Action] | str:
    """The actions, or how the stack ended."""
    try:
        return stack.step(event, now)
    except Exception as error:  # noqa: BLE001 - whatever it is, the record says whether it is the same
        return f"{type(error).__name__}: {error}"


def _lines(answer: Sequence[Action] | str) -> tuple[str, ...]:
    if isinstance(answer, str):
        return (_short(answer),)
    lines = [_text(action) for action in answer[:_LINES_MAX]]
    if len(answer) > _LINES_MAX:
        lines.append(f"and {len(answer) - _LINES_MAX} more")
    return tuple(lines)


def _text(value: Event | Action) -> str:
    return _short(repr(value))


def _short(text: str) -> str:
    return text if len(text) <= _LINE_CHARACTERS_MAX else f"{text[:_LINE_CHARACTERS_MAX]}..."
