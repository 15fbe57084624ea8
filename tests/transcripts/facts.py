"""What can be said of a whole group, to wait for it (`until`) or to check it. Nothing here looks into a stack but for its phase.

    primary NAME...              they are in one view that decides, and are its members
    coordinator NAME             it coordinates a view that decides, and no higher one does
    phase NAME PHASE             where it is in its life
    committed BATCH NAME...      the decided log of each has the batch, once
    undecided BATCH NAME...      the log of each has it, durably, and it is not decided there
    absent BATCH NAME...         the log of none has it
    void BATCH NAME...           the decided log of each has it with an ABORT that voids it
    answer NAME sS TEXT...       that session was answered so (the beginning of the answer will do)
    answers NAME sS N            it was answered N times
    same-log NAME...             their decided logs are the same, and nothing behind them is undecided
    behind NAME OTHER            the decided log of the first is shorter
    held KIND... FROM>TO         such a message is held
    votes NAME                   the roster counts this gateway with the disk that it has
    stopped NAME / halted NAME   it has

BATCH is `pP/E FIRST+COUNT`. Without names, the gateways that take part are meant.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from tests.transcripts.network import rule
from tests.transcripts.text import answer_text, frame_text
from tests.transcripts.whole import Gateway, Whole
from tutti.data.frames.frame import Frame, Kind


def is_so(world: Whole, words: list[str]) -> bool:
    """Whether the fact holds now."""
    return _FACTS[words[0]](world, words[1:])


def _gateways(world: Whole, names: list[str]) -> list[Gateway]:
    return [world.members[name] for name in names] if names else [one for one in world.members.values() if one.up]


def _primary(world: Whole, names: list[str]) -> bool:
    gateways = _gateways(world, names)
    views = {gateway.view for gateway in gateways if gateway.up}
    view = views.pop() if len(views) == 1 else None
    return bool(view and view.primary and set(view.members) == {gateway.me for gateway in gateways if gateway.up})


def _coordinator(world: Whole, names: list[str]) -> bool:
    views = [
        (one.view.view, one.view.coordinator == one.me, one.name) for one in _gateways(world, []) if one.view and one.view.primary
    ]
    highest = max(view for view, _, _ in views) if views else 0
    return (highest, True, names[0]) in views


def _phase(world: Whole, words: list[str]) -> bool:
    return world.members[words[0]].running.phase.value == words[1]


def _found(frames: list[Frame], words: list[str]) -> Iterator[Frame]:
    wanted = f"BATCH {words[0]} {words[1]}"
    return (frame for frame in frames if frame.kind == Kind.BATCH and frame_text(frame).split(" ", 1)[1] == wanted)


def _each(world: Whole, words: list[str], fact: Callable[[Gateway], bool]) -> bool:
    return all(fact(gateway) for gateway in _gateways(world, words[2:]))


def _committed(world: Whole, words: list[str]) -> bool:
    def fact(gateway: Gateway) -> bool:
        places = [frame.position for frame in _found(gateway.disk.frames[: gateway.frontier], words)]
        return len(places) == 1 and places[0] not in world.watch.void

    return _each(world, words, fact)


def _void(world: Whole, words: list[str]) -> bool:
    def fact(gateway: Gateway) -> bool:
        places = {frame.position for frame in _found(gateway.disk.frames[: gateway.frontier], words)}
        return bool(places) and places <= world.watch.void

    return _each(world, words, fact)


def _undecided(world: Whole, words: list[str]) -> bool:
    return _each(world, words, lambda gateway: any(_found(gateway.disk.frames[gateway.frontier :], words)))


def _absent(world: Whole, words: list[str]) -> bool:
    return _each(world, words, lambda gateway: not any(_found(gateway.disk.frames, words)))


def _answers(world: Whole, words: list[str]) -> list[str]:
    return [answer_text(answer) for session, answer in world.members[words[0]].replies if f"s{session}" == words[1]]


def _answer(world: Whole, words: list[str]) -> bool:
    return any(answer.startswith(" ".join(words[2:])) for answer in _answers(world, words))


def _counted(world: Whole, words: list[str]) -> bool:
    return len(_answers(world, words)) == int(words[2])


def _same_log(world: Whole, names: list[str]) -> bool:
    gateways = _gateways(world, names)
    logs = {tuple(frame.header for frame in gateway.disk.frames) for gateway in gateways}
    return len(logs) == 1 and all(gateway.frontier == gateway.disk.durable for gateway in gateways)


def _behind(world: Whole, names: list[str]) -> bool:
    return world.members[names[0]].frontier < world.members[names[1]].frontier


def _held(world: Whole, words: list[str]) -> bool:
    wanted = rule("hold", words)
    return any(wanted.applies(letter) for letter in world.network.held)


def _votes(world: Whole, names: list[str]) -> bool:
    disks = world.watch.voters.values()
    return world.members[names[0]].disk.incarnation in disks


_FACTS: dict[str, Callable[[Whole, list[str]], bool]] = {
    "primary": _primary,
    "coordinator": _coordinator,
    "phase": _phase,
    "committed": _committed,
    "void": _void,
    "undecided": _undecided,
    "absent": _absent,
    "answer": _answer,
    "answers": _counted,
    "same-log": _same_log,
    "behind": _behind,
    "held": _held,
    "votes": _votes,
    "stopped": lambda world, names: world.members[names[0]].stopped,
    "halted": lambda world, names: bool(world.members[names[0]].halted),
}
