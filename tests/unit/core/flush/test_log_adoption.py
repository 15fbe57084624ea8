"""Tests of log adoption: when a log is the adopted one, and that no state replaces a corrupt end that reaches further."""

from __future__ import annotations

from random import Random
from types import SimpleNamespace
from typing import Any, cast

import pytest

from tests.unit.log.history import sample
from tutti.data.log_state import LogState
from tutti_gateway.core.context import Context
from tutti_gateway.core.flush.install_snapshot import SnapshotInstall
from tutti_gateway.core.flush.log_adoption import LogAdoption
from tutti_gateway.core.flush.log_compare import Extent
from tutti_gateway.core.outbox import Outbox
from tutti_gateway.core.pending_window import Window
from tutti_gateway.core.protocol.actions import Persist, Send
from tutti_gateway.core.protocol.events import Identity, Now, StackConfig
from tutti_gateway.core.protocol.messages import Damage, Fetch, FetchedSnapshot
from tutti_gateway.core.view.view_state import ViewState

VIEW = 7 << 16 | 2
HISTORY = sample(60)
DECIDED, WHOLE, BEGIN, END = (HISTORY.settled(records) for records in (10, 20, 40, 55))


class Bench:
    """A member whose log is intact up to `WHOLE`, and damaged after that up to `last`; g2 has the log to adopt, which ends at `END`
    and begins after `BEGIN`.
    """

    def __init__(self, last: int) -> None:
        standing = ViewState()
        standing.me = 1
        self.outbox = Outbox(standing)
        self.outbox.now = Now(0, 0)
        self.window = Window(self.state_at(DECIDED))
        self.window.restore(tuple(HISTORY.frames[DECIDED:WHOLE]))
        identity = Identity("g1", bytes(16), "test", {})
        context = Context(StackConfig(), standing, self.outbox, self.window, identity, Random(bytes(16)))
        self.relearning = SnapshotInstall(context, lambda position: None, lambda: None)
        peers = cast("Any", [SimpleNamespace(number=2, beat=None)])
        self.adopting = LogAdoption(context, cast("Any", SimpleNamespace(truncate=lambda to: None)), peers, self.relearning)
        if last > WHOLE:
            self.adopting.damage = Damage(WHOLE + 1, last, VIEW, 12345)
        self.adopting.begin(VIEW, 2, Extent(BEGIN, (), END), None)

    def state_at(self, position: int) -> LogState:
        state = LogState()
        for frame in HISTORY.frames[:position]:
            state.apply(frame, frame.position in HISTORY.void)
        return state

    def asked(self) -> list[int]:
        """The positions from which frames are wanted."""
        sent = [action.message for action in self.outbox.drain(None) if isinstance(action, Send)]
        return [message.first for message in sent if isinstance(message, Fetch)]

    def gets_state(self) -> bool:
        """Deliver the state with which g2's log begins, and return whether it replaces this log."""
        data = self.state_at(BEGIN).to_bytes()
        piece = FetchedSnapshot(view=VIEW, position=BEGIN, size=len(data), at=0, data=data, source=0)
        assert self.adopting.on_snapshot(2, piece)
        return any(isinstance(action, Persist) and action.snapshot for action in self.outbox.drain(None))


@pytest.mark.parametrize("last", [WHOLE, WHOLE + 1, BEGIN - 1, BEGIN])
def test_a_state_that_covers_the_damage_replaces_the_log(last: int) -> None:
    bench = Bench(last)
    assert bench.asked() == [DECIDED + 1]
    assert bench.gets_state()
    assert bench.relearning.replacing


@pytest.mark.parametrize("last", [BEGIN + 1, END])
def test_a_damaged_end_that_reaches_beyond_the_state_stays(last: int) -> None:
    """Only its mark shows a frame that may be decided: with the log replaced, this disk would report an earlier end."""
    bench = Bench(last)
    assert bench.asked() == [DECIDED + 1]
    assert not bench.gets_state()
    assert not bench.relearning.busy
    assert bench.adopting.damage is not None
    assert bench.adopting.damage.last == last


@pytest.mark.parametrize("whole", [True, False])
def test_a_log_is_the_adopted_one_when_its_chain_value_is_the_announced_one(whole: bool) -> None:
    """A source that follows another log since then gives frames that fit one by one and are not the log of the answers."""
    bench = Bench(WHOLE)
    chain = bench.window.chain if whole else bench.window.chain ^ 1
    bench.adopting.begin(VIEW, 1, bench.adopting.extent(), chain)
    assert bench.adopting.done() is whole
