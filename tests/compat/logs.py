"""The logs of the fixtures: what a release writes down of them is kept for ever, so what is in them never changes either."""

from __future__ import annotations

import time
from pathlib import Path

from tests.unit.log.history import History, decide, opened, sample, write_log
from tests.unit.log.lane_history import LaneHistory, Owner
from tutti.data.frames.bodies import ViewBody, encode_body
from tutti.data.frames.frame import Frame, Kind
from tutti.data.hard_state import HardState
from tutti.data.lane_name import LaneName
from tutti.data.view_id import view_of
from tutti.log.files.layout import list_positions
from tutti_gateway.log.lanes.lane_logs import LaneLogs

VOTERS = 3


class GroupHistory(History):
    """A log as a group of three orders it, with views of some of them."""

    def change(self, counter: int, coordinator: int, members: tuple[int, ...]) -> Frame:
        """A view of these members."""
        self.view_id = view_of(counter, coordinator)
        return self._add(Frame(Kind.VIEW, encode_body(ViewBody(members))))


def alone(path: Path) -> History:
    """One gateway, stopped in order: several segments, all compressions, aborts, epochs, ticks, offset commits, a FORGET."""
    history = sample(60)
    write_log(path, history)
    return history


def member(path: Path) -> History:
    """One of three, killed: three views, an abort, a voter's roster, and behind the frontier an undecided end with a void batch."""
    history = GroupHistory(begin=False)
    history.view_id = view_of(1, 1)
    history.roster(VOTERS)
    history.change(1, 1, (1, 2, 3))
    for number in range(12):
        history.batch(f"producer{number % 2}", "topic", [b"first view %d" % number] * 3, progress=b"%d" % number)
    void = history.batch("producer0", "topic", [b"void"])
    history.abort(void.position)
    history.tick()
    history.change(2, 2, (2, 3))
    history.epoch("producer0")
    history.batch("producer0", "other", [None, b"", b"second view"], keys=[b"k", None, b""])
    history.change(4, 3, (3, 2, 1))
    history.batch("producer1", "topic", [b"third view"], headers=[[("name", b"value"), ("none", None)]])
    decided = len(history.frames)
    for number in range(4):
        history.batch("producer1", "topic", [b"undecided %d" % number])
    late = history.batch("producer0", "topic", [b"void and undecided"])
    history.abort(late.position)
    writer, _, _ = opened(path)
    writer.write_hard_state(HardState(view_of(5, 2), history.view_id, view_of(3, 1)))
    writer.append(history.frames[:decided])
    writer.sync()
    decide(writer, history, 1, decided)
    writer.append(history.frames[decided:])
    writer.sync()
    _forget_end(history, decided)
    return history  # neither writer nor directory is closed: it was killed


def trimmed(path: Path) -> History:
    """A log whose oldest segments are gone by a TRIM."""
    history = sample(100)
    write_log(path, history)
    position = list_positions(str(path), "seg")[-2]
    end = len(history.frames)
    history.trim(position, history.offset_after(position - 1))
    history.batch("late", "late", [b"behind the trim"])
    writer, _, close = opened(path)
    writer.append(history.frames[end:])
    writer.sync()
    decide(writer, history, end + 1, len(history.frames))
    while writer.idle():
        time.sleep(0.001)
    close()
    return history


def lanes(path: Path) -> History:
    """A log with lanes beside it: the own one, all of it decided, and one of another gateway, with an undecided end."""
    history = sample(6)
    write_log(path, history)
    logs = LaneLogs(Owner(str(path), OWN_DISK))
    logs.start()
    for lane, attempts in ((LaneName(1, OWN_DISK), 3), (LaneName(2, bytes(range(16))), 2)):
        made = LaneHistory(lane)
        for attempt in range(attempts):
            made.view()
            for number in range(5):
                made.batch(b"%d" % attempt, b"%d" % number, producer=1 + number % 2)
        own = lane.incarnation == OWN_DISK
        decided = len(made.frames) - (0 if own else 2)
        logs.persist(made.write(1, len(made.frames), attempt=attempts if own else None))
        logs.sync()
        logs.frontier(lane, decided, made.offset(decided))
        logs.decided(made.deliver(1, decided))
    logs.close()
    return history


OWN_DISK = bytes(16)  # the incarnation that the fixtures' directories have
LOGS = {"alone": alone, "member": member, "trimmed": trimmed, "lanes": lanes}


def _forget_end(history: History, decided: int) -> None:
    """Records above the frontier are no committed ones."""
    history.records = [record for record in history.records if record.position <= decided]
