"""Tests of the installation of another member's state: it must be complete, of this log and further than this one, or it is
dropped.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random

import pytest

from tests.unit.log.history import History, sample
from tutti.data.log_state import LogState
from tutti.errors import InvariantViolated
from tutti_gateway.core import limits
from tutti_gateway.core.context import Context
from tutti_gateway.core.flush.install_snapshot import SnapshotInstall
from tutti_gateway.core.outbox import Outbox
from tutti_gateway.core.pending_window import CommitStage, Window
from tutti_gateway.core.protocol.actions import Persist, Send
from tutti_gateway.core.protocol.events import Identity, Now, StackConfig
from tutti_gateway.core.protocol.messages import FetchedSnapshot, FetchSnapshot
from tutti_gateway.core.view.view_state import ViewState

VIEW = 7 << 16 | 2
HISTORY = sample(60)


def state_at(position: int, history: History = HISTORY) -> LogState:
    state = LogState()
    for frame in history.frames[:position]:
        state.apply(frame, frame.position in history.void)
    return state


def settled(position: int) -> int:
    return HISTORY.settled(position)


class Bench:
    """A member whose log ends at `end` and is decided up to `decided`."""

    def __init__(self, decided: int = settled(10), end: int = settled(20)) -> None:
        self.view_state = ViewState()
        self.view_state.me = 1
        self.outbox = Outbox(self.view_state)
        self.outbox.now = Now(0, 0)
        self.window = Window(state_at(decided))
        self.window.restore(HISTORY.frames[decided:end])
        self.told: list[tuple[str, int]] = []
        identity = Identity("g1", bytes(16), "test", {})
        context = Context(StackConfig(), self.view_state, self.outbox, self.window, identity, Random(bytes(16)))
        self.relearning = SnapshotInstall(
            context,
            lambda position: self.told.append(("known", position)),
            lambda: self.told.append(("replaced", self.window.frontier)),
        )

    def give(
        self, data: bytes, position: int, *, at: int = 0, size: int = 0, sender: int = 2, last: int = limits.POSITION_MAX
    ) -> bool:
        piece = FetchedSnapshot(view=0, position=position, size=size or len(data), at=at, data=data, source=VIEW)
        return self.relearning.on_chunk(sender, piece, last)

    def actions(self) -> list[object]:
        return list(self.outbox.drain(None))


def test_a_log_that_ends_before_is_replaced_once_that_is_durable() -> None:
    bench = Bench()
    position = settled(50)
    data = state_at(position).to_bytes()
    assert bench.give(data, position)
    (persist,) = bench.actions()
    assert isinstance(persist, Persist)
    assert persist.snapshot == data
    assert bench.relearning.replacing
    assert bench.window.end == settled(20)
    assert bench.give(data, position)  # a copy
    assert bench.actions() == []
    bench.relearning.persisted(persist.token - 1)
    assert bench.told == []
    bench.relearning.persisted(persist.token)
    assert bench.told == [("replaced", position)]
    window = bench.window
    assert window.state == state_at(position)
    assert (window.end, window.chain, window.base, list(window.runs), list(window.frames)) == (
        position,
        state_at(position).chain,
        position,
        [],
        [],
    )
    assert {window.mark(stage) for stage in CommitStage} == {position}
    assert not bench.relearning.busy
    window.extend(HISTORY.frames[position:])


def test_the_pieces_are_asked_for_one_after_the_other_and_copies_do_no_harm() -> None:
    bench = Bench()
    position = settled(50)
    data = state_at(position).to_bytes()
    size, half = len(data), len(data) // 2
    assert bench.give(data[:half], position, size=size)
    assert bench.actions() == [Send(2, FetchSnapshot(0, position, half))]
    assert bench.give(data[:9], position, at=9, size=size)
    bench.relearning.request_next()
    assert bench.actions() == [Send(2, FetchSnapshot(0, position, half))]
    assert bench.relearning.busy
    assert bench.give(data[half:], position, at=half, size=size)
    assert [type(action) for action in bench.actions()] == [Persist]


def test_a_log_that_holds_its_last_frame_stays_and_knows_that_it_is_decided() -> None:
    bench = Bench(decided=settled(10), end=settled(50))
    position = settled(30)
    assert bench.give(state_at(position).to_bytes(), position)
    assert bench.actions() == []
    assert bench.told == [("known", position)]
    assert bench.window.end == settled(50)


def test_a_log_that_holds_another_frame_there_is_replaced() -> None:
    bench = Bench(decided=settled(10), end=settled(20))
    other = HISTORY.branch(settled(15), 5)
    for number in range(20):
        other.batch("other", "t", [b"%d" % number])
    position = settled(15) + 4
    assert bench.give(state_at(position, other).to_bytes(), position)
    (persist,) = bench.actions()
    assert isinstance(persist, Persist)
    bench.relearning.persisted(persist.token)
    assert bench.window.chain == other.frames[position - 1].header_crc


def damaged(data: bytes) -> bytes:
    return data[:-1] + bytes([data[-1] ^ 1])


def foreign(data: bytes) -> bytes:
    state = LogState.from_bytes(data)
    state.log = b"another log's id"
    return state.to_bytes()


def nobodys(data: bytes) -> bytes:
    state = LogState.from_bytes(data)
    state.roster = {}
    return state.to_bytes()


def elsewhere(data: bytes) -> bytes:
    state = LogState.from_bytes(data)
    state.position -= 1
    return state.to_bytes()


@pytest.mark.parametrize("change", [damaged, foreign, nobodys, elsewhere], ids=lambda change: change.__name__)
def test_a_state_that_is_not_of_this_log_is_dropped(change: Callable[[bytes], bytes]) -> None:
    bench = Bench()
    position = settled(50)
    assert not bench.give(change(state_at(position).to_bytes()), position)
    assert bench.outbox.drops == 1
    assert not bench.relearning.busy
    assert not any(isinstance(action, Persist) for action in bench.actions())


def test_a_state_not_further_or_beyond_the_requested_one_is_useless() -> None:
    bench = Bench()
    for position, last in ((settled(10), limits.POSITION_MAX), (settled(50), settled(40))):
        assert not bench.give(state_at(position).to_bytes(), position, last=last)
    assert not bench.relearning.busy
    assert bench.actions() == []


def test_a_source_that_lost_the_state_or_sends_another_is_given_up() -> None:
    bench = Bench()
    position = settled(50)
    data = state_at(position).to_bytes()
    assert bench.give(data[:100], position, size=len(data))
    assert not bench.relearning.on_chunk(2, FetchedSnapshot(view=0, position=position, size=0, at=0, data=b""), limits.POSITION_MAX)
    assert not bench.relearning.busy
    assert not bench.give(data[100:], position, at=100, size=len(data))  # nobody asked
    assert bench.give(data[:100], position, size=len(data))
    assert not bench.give(data[100:200], position, at=100, size=len(data), sender=3)
    bench.relearning.stop()
    assert not bench.relearning.busy


def test_a_log_is_never_replaced_by_less() -> None:
    bench = Bench()
    with pytest.raises(InvariantViolated, match="is replaced by one up to"):
        bench.window.replace(state_at(settled(10)))
