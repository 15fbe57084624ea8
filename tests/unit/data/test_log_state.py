"""Tests of LogState: it is a function of the frames alone, survives a snapshot unchanged, and refuses a frame that
cannot follow.
"""

from __future__ import annotations

import msgspec
import pytest

from tutti.data.frames.bodies import (
    AbortBody,
    Entry,
    EpochBody,
    ForgetBody,
    OffsetsBody,
    RosterBody,
    TickBody,
    TopicBody,
    ViewBody,
    Voter,
    encode_body,
)
from tutti.data.frames.frame import Frame, Kind
from tutti.data.log_state import REMOVED_MAX, LogState
from tutti.errors import Damaged, FormatError, InvariantViolated

VIEW = 1 << 16 | 1


class Log:
    """Stamps frames one after the other and applies them."""

    def __init__(self) -> None:
        self.state = LogState()

    def put(self, kind: Kind, body: msgspec.Struct | bytes = b"", aborted: bool = False, **fields: int) -> int:
        data = body if isinstance(body, bytes) else encode_body(body)
        frame = Frame(kind, data, **fields)  # type: ignore[arg-type]  # header fields, all numbers
        frame.stamp(VIEW, self.state.position + 1, self.state.chain)
        return self.state.apply(frame, aborted)


@pytest.fixture
def log() -> Log:
    log = Log()
    log.put(Kind.ROSTER, RosterBody("ingest", bytes(16), (Voter(1, "jfk", bytes(16), "127.0.0.1:7400"),)))
    log.put(Kind.VIEW, ViewBody((1,)))
    log.put(Kind.TOPIC, TopicBody("flights"), topic=1)
    log.put(Kind.EPOCH, EpochBody("p", bytes(16), 0, b""), producer=1, epoch=1)
    return log


def batch(log: Log, first: int, count: int, aborted: bool = False) -> int:
    return log.put(
        Kind.BATCH, b"body", aborted, producer=1, epoch=1, first_sequence=first, count=count, topic=1, min_timestamp=first
    )


def test_offsets_are_dense_and_leave_aborted_batches_out(log: Log) -> None:
    assert batch(log, 1, 10) == 0
    assert batch(log, 11, 5, aborted=True) == 10
    entry = Entry(bytes(16), 1, 10, b"")
    assert log.put(Kind.ABORT, AbortBody(6, "no space", entry), producer=1, epoch=1) == 10
    assert log.state.producers[1].closed
    assert log.state.producers[1].sequence == 10
    log.put(Kind.EPOCH, EpochBody("p", bytes(16), 10, b""), producer=1, epoch=2)
    assert log.put(Kind.BATCH, b"", producer=1, epoch=2, first_sequence=11, count=1, topic=1) == 10
    assert log.state.next_offset == 11
    topic = log.state.topics[1]
    assert (topic.records, topic.first_offset, topic.last_offset) == (11, 0, 10)


def test_a_snapshot_is_the_same_state(log: Log) -> None:
    batch(log, 1, 3)
    log.put(Kind.TICK, TickBody(1, 1_000_000))
    log.put(Kind.OFFSETS, OffsetsBody({"reader": 2}))
    state = log.state
    data = state.to_bytes()
    assert LogState.from_bytes(data) == state
    other = state.copy()
    other.producers[1].sequence = 99
    assert state.producers[1].sequence == 3
    assert (state.tick, state.tick_time, state.dirty, state.readers) == (1, 1_000_000, False, {"reader": 2})
    for place in range(len(data)):
        with pytest.raises(FormatError):
            LogState.from_bytes(data[:place] + bytes([data[place] ^ 0x10]) + data[place + 1 :])
    with pytest.raises(Damaged):
        LogState.from_bytes(data[:-1])


def test_forget_raises_the_floor_and_frees_the_line(log: Log) -> None:
    log.put(Kind.FORGET, ForgetBody((1,), 7))
    assert log.state.producers == {}
    assert log.state.floor == 7
    assert log.state.next_producer == 2
    assert log.state.producer_number("p") == 0
    assert log.state.topic_number("flights") == 1


@pytest.mark.parametrize(("first", "epoch", "topic"), [(2, 1, 1), (1, 2, 1), (1, 1, 9)])
def test_a_batch_that_cannot_follow_is_refused(log: Log, first: int, epoch: int, topic: int) -> None:
    with pytest.raises(FormatError):
        log.put(Kind.BATCH, b"", producer=1, epoch=epoch, first_sequence=first, count=1, topic=topic)


def test_a_gap_in_positions_is_an_invariant(log: Log) -> None:
    frame = Frame(Kind.TICK, encode_body(TickBody(1, 1)))
    frame.stamp(VIEW, 9, 0)
    with pytest.raises(InvariantViolated, match="frame 9 was applied, but position 5 comes next"):
        log.state.apply(frame)


def voters(*names: str) -> tuple[Voter, ...]:
    return tuple(Voter(int(name[1:]), name, name.encode().ljust(16, b"-"), f"{name}:7400") for name in names)


def test_a_removed_voter_keeps_the_number_of_its_disk_until_its_name_comes_back() -> None:
    log = Log()
    log.put(Kind.ROSTER, RosterBody("g", b"l" * 16, voters("g1", "g2", "g3")))
    log.put(Kind.ROSTER, RosterBody("g", b"l" * 16, voters("g1", "g2")))
    log.put(Kind.ROSTER, RosterBody("g", b"l" * 16, (*voters("g1", "g2"), Voter(4, "g4", b"", "g4:7400", False))))
    state = LogState.from_bytes(log.state.to_bytes())
    assert [state.gateway_number(f"g{number}".encode().ljust(16, b"-")) for number in (1, 2, 3, 5)] == [1, 2, 3, 0]
    log.put(Kind.ROSTER, RosterBody("g", b"l" * 16, (*voters("g1", "g2"), Voter(5, "g3", b"", "g3:7400", False))))
    assert log.state.gateway_number(b"g3".ljust(16, b"-")) == 0
    assert not log.state.removed, "a learner that never voted owes no answer"


def test_a_state_names_a_bounded_number_of_removed_voters() -> None:
    log = Log()
    for number in range(1, 2 * REMOVED_MAX):
        log.put(Kind.ROSTER, RosterBody("g", b"l" * 16, voters(f"g{number}")))
    assert len(log.state.removed) == REMOVED_MAX
    assert log.state.gateway_number(f"g{2 * REMOVED_MAX - 2}".encode().ljust(16, b"-")) == 2 * REMOVED_MAX - 2
