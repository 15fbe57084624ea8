"""Tests of log serving: a gateway sends frames to a candidate while it has promised that view, and to a learner while its own view
is installed.
"""

from __future__ import annotations

import pytest

from tests.transcripts.whole import Gateway
from tests.transcripts.whole_script import WholeScript
from tutti.data.view_id import view_of
from tutti_gateway.core import limits
from tutti_gateway.core.protocol.actions import Action, ReadLog, Send
from tutti_gateway.core.protocol.events import LogRead, Received, SnapshotRead
from tutti_gateway.core.protocol.messages import Fetch, Fetched, FetchedSnapshot, FetchSnapshot, Heartbeat, Propose, Reject

DISK_2, DISK_3 = b"g2/1".ljust(16, b"-"), b"g3/1".ljust(16, b"-")
DECIDED = 2  # ROSTER and VIEW of the first view
LAST = limits.POSITION_MAX
FRAMES = (Fetched, FetchedSnapshot)


class Bench:
    """Gateway g1 of three in view 1.1, and its reaction to one message."""

    def __init__(self, commands: str = "") -> None:
        self.script = WholeScript()
        self.script.run(f"quiet\ngateways g1 g2 g3\nuntil primary g1 g2 g3\n{commands}----\n")
        self.me = self.script.world.members["g1"]
        self.view = self.me.running.layers.context.view_state.view
        self.actions: list[Action] = []
        tell = self.script.world.tell

        def hear(who: str, what: Action | str) -> None:
            tell(who, what)
            if who == "g1" and not isinstance(what, str):
                self.actions.append(what)

        self.script.world.tell = hear

    def step(self, event: Received | LogRead | SnapshotRead) -> list[Action]:
        self.actions.clear()
        self.script.world.step(self.me, event)
        return list(self.actions)

    def given(self, event: Received | LogRead | SnapshotRead) -> list[object]:
        """The frames, states and refusals that g1 sends at the event."""
        return [
            action.message
            for action in self.step(event)
            if isinstance(action, Send) and isinstance(action.message, (*FRAMES, Reject))
        ]

    def promise(self, counter: int, proposer: int = 2) -> int:
        """Gateway g1 promises a view of g2 and g3, durably; its number. Both miss their coordinator."""
        view = view_of(counter, proposer)
        self.me.running.layers.membership._leader_missed = limits.BOOT_HEARTBEATS_MAX
        disk = {2: DISK_2, 3: DISK_3}[proposer]
        self.script.world.step(self.me, Received(proposer, Propose(view, (1, 2, 3)), disk))
        self.script.run("settle\n----\n")
        assert self.me.running.layers.context.view_state.promised == view
        return view

    def read(self, actions: list[Action]) -> ReadLog:
        (read,) = [action for action in actions if isinstance(action, ReadLog)]
        return read


def frames_of(member: Gateway) -> tuple[object, ...]:
    return tuple(member.disk.frames[:DECIDED])


def test_a_view_change_is_served_while_its_view_is_promised() -> None:
    bench = Bench("split g1 g2,g3\n")
    view = bench.promise(5)
    read = bench.read(bench.step(Received(2, Fetch(view, 1, DECIDED), DISK_2)))
    (fetched,) = bench.given(LogRead(read.token, bench.me.disk.read(read).frames, DECIDED))
    assert isinstance(fetched, Fetched)
    assert (fetched.view, fetched.frames) == (view, frames_of(bench.me))


def test_a_view_change_is_refused_once_a_higher_view_is_promised() -> None:
    """The higher view may replace the log, and frames of both would be mixed into one."""
    bench = Bench("split g1 g2,g3\n")
    old = bench.promise(5)
    new = bench.promise(6, proposer=3)
    (refusal,) = bench.given(Received(2, Fetch(old, 1, DECIDED), DISK_2))
    assert isinstance(refusal, Reject)
    assert (refusal.view, refusal.promised) == (old, new)
    assert bench.given(Received(2, FetchSnapshot(old, DECIDED, 0), DISK_2)) == []


def test_frames_read_for_a_view_change_are_not_sent_after_a_higher_promise() -> None:
    bench = Bench("split g1 g2,g3\n")
    old = bench.promise(5)
    read = bench.read(bench.step(Received(2, Fetch(old, 1, DECIDED), DISK_2)))
    found = bench.me.disk.read(read)
    bench.promise(6, proposer=3)
    assert bench.given(LogRead(read.token, found.frames, DECIDED)) == []


def test_a_learner_is_served_by_a_member_of_an_installed_view() -> None:
    bench = Bench()
    read = bench.read(bench.step(Received(3, Fetch(0, 1, LAST), DISK_3)))
    (fetched,) = bench.given(bench.me.disk.read(read))
    assert isinstance(fetched, Fetched)
    assert (fetched.view, fetched.source, fetched.frames) == (0, bench.view, frames_of(bench.me))


@pytest.mark.parametrize("promises", [False, True])
def test_a_learner_is_not_served_by_a_gateway_in_no_view(promises: bool) -> None:
    """The decided end of such a gateway may be far behind, so a learner gets nothing and tries another source."""
    bench = Bench("split g1 g2,g3\n")
    if promises:
        bench.promise(5)
    else:
        bench.me.running.layers.flush.lost()
    assert not any(isinstance(action, ReadLog | Send) for action in bench.step(Received(3, Fetch(0, 1, LAST), DISK_3)))
    assert not any(isinstance(action, ReadLog | Send) for action in bench.step(Received(3, Fetch(0, DECIDED + 1, LAST), DISK_3)))


def beat(bench: Bench, sender: int, view: int) -> Heartbeat:
    """A heartbeat of a gateway that is in the view, coordinated by g2, and has the log of g1."""
    window = bench.me.running.layers.context.window
    return Heartbeat(
        sent_us=bench.script.world.mono_us,
        log=window.log(),
        view=view,
        members=(2, 3),
        promised=view,
        accepted=view,
        claim=view if sender == 2 else 0,
        end=window.end,
        frontier=window.frontier,
        misses=False,
        hears=(1, 2, 3),
    )


@pytest.mark.parametrize(("above", "learns"), [(-1, False), (0, False), (1, True)])
def test_a_learner_asks_only_a_member_of_a_view_above_its_accepted_one(above: int, learns: bool) -> None:
    """A log that has accepted a view holds all that was decided in the views before: a source of one of these knows no more."""
    bench = Bench("kill g2\nkill g3\nbeats 10\n")
    bench.me.running.layers.flush.lost()
    standing = bench.me.running.layers.context.view_state
    view = view_of((standing.accepted >> 16) + above, 2) if above else standing.accepted
    asked = []
    for _ in range(3):
        bench.step(Received(3, beat(bench, 3, view), DISK_3))
        bench.actions.clear()
        bench.script.run("beats 1\n----\n")
        asked += [action.to for action in bench.actions if isinstance(action, Send) and isinstance(action.message, Fetch)]
    assert bool(asked) is learns


@pytest.mark.parametrize(("above", "ready"), [(0, False), (1, True)])
def test_a_learner_ignores_views_not_above_its_accepted_one(above: int, ready: bool) -> None:
    """A source may have continued in its old view since the request."""
    bench = Bench("kill g2\nkill g3\nbeats 10\n")
    flush = bench.me.running.layers.flush
    flush.lost()
    accepted = bench.me.running.layers.context.view_state.accepted
    bench.step(Received(3, beat(bench, 3, view_of((accepted >> 16) + 1, 2)), DISK_3))
    bench.script.run("beats 1\n----\n")
    first = flush.learner._next
    source = accepted + above
    bench.step(Received(3, Fetched(view=0, first=first, frames=(), source=source, stop=first - 1), DISK_3))
    assert flush.ready is ready


@pytest.mark.parametrize(("above", "takes"), [(0, False), (1, True)])
def test_a_learner_accepts_no_state_of_a_view_not_above_its_accepted_one(above: int, takes: bool) -> None:
    bench = Bench("kill g2\nkill g3\nbeats 10\n")
    flush = bench.me.running.layers.flush
    flush.lost()
    accepted = bench.me.running.layers.context.view_state.accepted
    bench.step(Received(3, beat(bench, 3, view_of((accepted >> 16) + 1, 2)), DISK_3))
    bench.script.run("beats 1\n----\n")
    piece = FetchedSnapshot(view=0, position=flush.learner._next + 7, size=9, at=0, data=b"piece", source=accepted + above)
    bench.step(Received(3, piece, DISK_3))
    assert flush.snapshot_install.busy is takes
