"""Replay of a recorded run. A fresh stack gets the recorded events, and must return the recorded actions for each event.

The stack gets time, disk, network and randomness only through events, so its actions are a function of them. A difference has one
of three causes: a defect in the stack (some state is not a function of the events), a different release, or a modified recording.
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
    """The first event for which the replay returned different actions.

    Attributes:
        number: number of the event, counted from 1.
        mono_us, wall_us: both clocks at the event.
        event: the event as text.
        recorded: the recorded actions, one line each, or the recorded error as one line.
        again: the actions or the error of the replay, in the same form.
    """

    number: int
    mono_us: int
    wall_us: int
    event: str
    recorded: tuple[str, ...]
    again: tuple[str, ...]


class ReplayResult(msgspec.Struct, frozen=True):
    """The result of a replay.

    Attributes:
        header: gateway, release and configuration of the run.
        events: number of events with the recorded actions.
        first_us, last_us: wall clock at the first and the last event.
        closed: reason for the end of the recording; empty if the recording is `torn`.
        torn: whether a kill or crash ended the recording.
        raised: the error that the stack raised in the run and in the replay; empty if there is none.
        difference: the first difference; None if there is none.
    """

    header: Header
    events: int
    first_us: int
    last_us: int
    closed: str
    torn: bool
    raised: str
    difference: Difference | None


def replay_run(path: Path | str, reach: Callable[[int, int], None] = lambda done, size: None) -> ReplayResult:
    """Replay a recording.

    Args:
        path: the file of the recording.
        reach: called with the bytes read so far and the bytes of the file.

    Raises:
        UsageError: the file cannot be opened.
        FormatError: the file is not a recorded run, or has another format.
        Damaged: the file is corrupt before its end.
    """
    recording = Recording(path)
    try:
        return _rerun(recording, reach)
    finally:
        recording.close()


def _rerun(recording: Recording, reach: Callable[[int, int], None]) -> ReplayResult:
    # The recorded `Started` event has the seed of the random generator, so both runs draw the same numbers.
    stack = Stack(Random, recording.header.config)
    events = first_us = last_us = 0
    raised = ""
    difference = None
    for step in recording:
        reach(recording.done, recording.size)
        first_us, last_us = first_us or step.wall_us, step.wall_us
        difference = _step(stack, step, events + 1)
        # After one difference the states of the stacks may differ, so later differences would say nothing about the cause.
        if difference is not None:
            break
        raised = step.error if isinstance(step, Raised) else ""
        events += 1
    return ReplayResult(recording.header, events, first_us, last_us, recording.closed, recording.torn, raised, difference)


def _step(stack: Stack, step: Stepped | Raised, number: int) -> Difference | None:
    """Step the stack with a recorded event. Return None if the actions equal the recorded ones."""
    try:
        event = decode_lean_event(step.event)
        again = _answer(stack, event, Now(step.mono_us, step.wall_us))
        # Actions are compared in encoded form, because the encoding covers every field.
        recorded = step.error if isinstance(step, Raised) else bytes(step.actions)
        if recorded == (again if isinstance(again, str) else encode_lean_actions(again)):
            return None
        recorded_actions = recorded if isinstance(recorded, str) else decode_lean_actions(recorded)
    except FormatError as error:
        raise Damaged(f"this release cannot decode event {number} of the recording: {error}") from error
    return Difference(number, step.mono_us, step.wall_us, _text(event), _lines(recorded_actions), _lines(again))


def _answer(stack: Stack, event: Event, now: Now) -> Sequence[Action] | str:
    """Return the actions of a step, or the error as text."""
    try:
        return stack.step(event, now)
    except Exception as error:  # noqa: BLE001 - any error is compared with the recorded one
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
