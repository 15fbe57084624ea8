"""Properties of `LogState.apply_run`: it does what `apply` does one frame after the other, errors included."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from random import Random
from typing import Any

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from tutti.data.frames.bodies import (
    AbortBody,
    Entry,
    EpochBody,
    ForgetBody,
    OffsetsBody,
    RosterBody,
    TickBody,
    TopicBody,
    TrimBody,
    TxnBody,
    ViewBody,
    Voter,
    encode_body,
)
from tutti.data.frames.frame import STAGED, Frame, Kind
from tutti.data.log_state import LogState
from tutti.errors import FormatError, InvariantViolated

VIEW = 1 << 16 | 1
INSTANCE = bytes(16)
MOVES = ("batch",) * 16 + ("staged", "txn", "tick", "epoch", "topic", "forget", "abort", "trim", "offsets", "view")


class Log:
    """Frames that follow one another in a log, in which `fault` may put one that cannot follow."""

    def __init__(self, chance: Random, *, lane: bool) -> None:
        self._chance = chance
        self.state = LogState()
        self.before: list[Frame] = []
        self.frames: list[Frame] = []
        self.aborted: set[int] = set()
        if not lane:
            self.add(Kind.ROSTER, RosterBody("g", INSTANCE, (Voter(1, "g1", INSTANCE, "g1:7400"),)))
        self.add(Kind.VIEW, ViewBody((1,)))
        for number in (1, 2) if not lane else ():
            self.add(Kind.TOPIC, TopicBody(f"t{number}"), topic=number)
            self.add(Kind.EPOCH, EpochBody(f"p{number}", INSTANCE, 0, b""), producer=number, epoch=1)
        self.before, self.frames = self.frames, []

    def add(self, kind: Kind, body: msgspec.Struct | bytes, *, skip: int = 0, aborted: bool = False, **fields: int) -> None:
        data = body if isinstance(body, bytes) else encode_body(body)
        progress = self._chance.choice((b"", b"", b"at"))
        frame = Frame(kind, data, progress=progress, **fields)
        frame.stamp(VIEW, self.state.position + 1 + skip, self.state.chain)
        self.frames.append(frame)
        if aborted:
            self.aborted.add(frame.position)
        try:
            self.state.apply(frame, aborted)
        except (FormatError, InvariantViolated):
            # The rest of the frames follows the fault, which ends the run before them.
            self.state.position, self.state.chain = frame.position, frame.header_crc

    def batch(self, *, fault: str = "", flags: int = 0, aborted: bool = False) -> None:
        chance, state = self._chance, self.state
        number = chance.choice([*state.producers, 1])
        producer = state.producers.get(number)
        epoch, sequence = (producer.epoch, producer.sequence) if producer else (1, 0)
        self.add(
            Kind.BATCH,
            bytes(chance.randrange(20)),
            skip=chance.choice((-1, 1)) if fault == "position" else 0,
            aborted=aborted,
            flags=flags,
            producer=99 if fault == "producer" else number,
            epoch=epoch + (chance.choice((-1, 1)) if fault == "epoch" else 0),
            first_sequence=sequence + 1 + (chance.choice((-1, 1)) if fault == "sequence" else 0),
            count=chance.randint(1, 5),
            topic=99 if fault == "topic" else chance.choice([*state.topics, 1]),
            min_timestamp=chance.randrange(50),
            max_timestamp=chance.randrange(50, 100),
        )

    def move(self, move: str) -> None:
        chance, state = self._chance, self.state
        number = chance.choice([*state.producers, 1])
        producer = state.producers.get(number)
        epoch, sequence = (producer.epoch, producer.sequence) if producer else (1, 0)
        if move == "batch":
            self.batch(aborted=chance.random() < 0.1)
        elif move == "staged":
            self.batch(flags=STAGED)
        elif move == "txn":
            staged = dict(list(state.staged.items())[:2])
            counts = tuple(part.count for part in staged.values())
            fields: dict[str, Any] = {
                "producer": number,
                "epoch": epoch,
                "first_sequence": sequence + 1,
                "count": sum(counts),
                "topic": 1,
            }
            self.add(Kind.TXN, TxnBody(tuple(staged), counts), **fields)
        elif move == "tick":
            self.add(Kind.TICK, TickBody(state.tick + 1, state.tick_time + 7))
        elif move == "epoch":
            self.add(Kind.EPOCH, EpochBody(f"p{number}", INSTANCE, sequence, b""), producer=number, epoch=epoch + 1)
        elif move == "topic":
            self.add(Kind.TOPIC, TopicBody(f"t{state.next_topic}"), topic=state.next_topic)
        elif move == "forget":
            self.add(Kind.FORGET, ForgetBody((number,), epoch))
        elif move == "abort":
            body = AbortBody(max(state.position, 1), "full", Entry(INSTANCE, epoch, sequence, b""))
            self.add(Kind.ABORT, body, producer=number, epoch=epoch)
        elif move == "trim":
            self.add(Kind.TRIM, TrimBody(max(state.position, 1), state.next_offset))
        elif move == "offsets":
            self.add(Kind.OFFSETS, OffsetsBody({"reader": state.next_offset}))
        else:
            self.add(Kind.VIEW, ViewBody((1,)))


FAULTS = ("position", "producer", "epoch", "sequence", "topic")


def random_log(chance: Random) -> Log:
    log = Log(chance, lane=chance.random() < 0.1)
    fault = chance.choice((*FAULTS, "body", *("",) * len(FAULTS)))
    count = chance.randint(0, 25)
    for number in range(count):
        if fault and number == count // 2:
            if fault == "body":
                log.add(Kind.TICK, b"\xc1")
            else:
                log.batch(fault=fault)
        log.move(chance.choice(MOVES))
    return log


def in_turn(state: LogState, frames: Sequence[Frame], aborted: Collection[int]) -> tuple[int, ...]:
    return tuple([state.apply(frame, frame.position in aborted) for frame in frames])


Apply = Callable[[LogState, Sequence[Frame], Collection[int]], tuple[int, ...]]


def outcome(apply: Apply, state: LogState, frames: Sequence[Frame], aborted: Collection[int]) -> object:
    try:
        return apply(state, frames, aborted)
    except (FormatError, InvariantViolated) as error:
        return type(error), str(error)


@given(st.integers(0, 2**32))
@settings(max_examples=100)
def test_a_run_gives_the_offsets_the_state_and_the_error_of_its_frames_one_by_one(seed: int) -> None:
    chance = Random(seed)
    for _ in range(4):
        log = random_log(chance)
        states = [LogState(), LogState()]
        for state in states:
            in_turn(state, log.before, ())
        cut = chance.randint(0, len(log.frames))
        for frames in (log.frames[:cut], log.frames[cut:]):
            one, other = states
            aborted = frozenset(log.aborted)
            assert outcome(LogState.apply_run, one, frames, aborted) == outcome(in_turn, other, frames, aborted)
            assert one == other


def test_random_logs_have_faults_in_the_middle_and_long_runs_without_any() -> None:
    whole = broken = 0
    for seed in range(200):
        log = random_log(Random(seed))
        state = LogState()
        in_turn(state, log.before, ())
        if isinstance(outcome(in_turn, state, log.frames, log.aborted), tuple) and state.position == log.state.position:
            whole += len(log.frames) > 10
        else:
            broken += 1
    assert min(whole, broken) > 40
