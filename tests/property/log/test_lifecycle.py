"""Properties of a log in a group, against a model of a few lists: after any appends, syncs, truncations, decisions, promises, kills
and corruption, a start finds the state of the model, and readers see the decided part.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule, run_state_machine_as_test

from tests.unit.log.history import History, decide, expected, opened, other_boot, seen
from tests.unit.log.watched import Mortal
from tutti.data.frames.frame import Frame
from tutti.data.hard_state import HardState
from tutti.log.files.layout import FRAMES_AT, list_positions
from tutti.log.files.options import LogOptions
from tutti.log.format.hard_state import read_hard_state
from tutti.log.format.vote_mark import newest_mark
from tutti.log.read.reader import LogReader
from tutti.log.read.scan import scan
from tutti_gateway.core.protocol.messages import Damage
from tutti_gateway.log.tools.verify import verify
from tutti_gateway.log.writer import LogWriter

OPTIONS = LogOptions(segment_bytes=32 << 10, prepared_segments=0, reserved_bytes=0, disk_low_bytes=0, snapshot_frames=9)
GROWING = replace(OPTIONS, first_segment_bytes=16 << 10)
SHARES = st.floats(0, 1)


class Lives(RuleBasedStateMachine):
    """The model: `history.frames[:written]` is the log, of which `decided` frames are decided; `lost` is the loss that a start
    reported.
    """

    folder: Path

    @initialize(options=st.sampled_from([OPTIONS, GROWING]))
    def begin(self, options: LogOptions) -> None:
        self.options = options
        self.path = self.folder / str(sum(1 for _ in self.folder.iterdir()))
        self.history = History(voters=3)
        self.written = self.synced = self.decided = 0
        self.views = 1
        self.scalars = HardState()
        self.lost: Damage | None = None
        self.open()

    @property
    def log(self) -> list[Frame]:
        return self.history.frames[: self.written]

    def open(self) -> None:
        self.storage = Mortal()
        self.writer: LogWriter
        self.writer, self.recovered, self.close = opened(self.path, self.options, self.storage)

    # What the gateway does

    @rule(size=st.sampled_from([1, 300, 4000]), count=st.integers(1, 8), tick=st.booleans())
    def order(self, size: int, count: int, tick: bool) -> None:
        """More frames that may be appended."""
        for number in range(count):
            self.history.batch(f"p{self.views}", f"t{number % 2}", [b"%d" % number * size])
        if tick:
            self.history.tick()

    @rule(share=SHARES)
    def append(self, share: float) -> None:
        until = self.written + round(share * (len(self.history.frames) - self.written))
        self.writer.append(self.history.frames[self.written : until])
        self.written = until
        begun = list_positions(str(self.path), "seg")
        self.durable(max([self.synced, *(first - 1 for first in begun if first - 1 <= until)]))  # a segment begins behind a sync

    def durable(self, upto: int) -> None:
        """Mark everything up to a position as durable; a lost range counts as recovered once it is reached."""
        self.synced = upto
        if self.lost is not None and upto >= self.lost.last:
            self.lost = None

    @rule()
    def sync(self) -> None:
        self.writer.sync()
        self.durable(self.written)

    @rule(share=SHARES)
    def decide(self, share: float) -> None:
        upto = self.history.settled(self.decided + round(share * (self.synced - self.decided)))
        if upto > self.decided:
            decide(self.writer, self.history, self.decided + 1, upto)
            self.decided = upto

    @rule(accept=st.booleans())
    def promise(self, accept: bool) -> None:
        view = self.scalars.promised + 1
        self.scalars = HardState(view, view if accept else self.scalars.accepted, view)
        self.writer.write_hard_state(self.scalars)
        if accept:
            self.lost = None

    @rule()
    def idle(self) -> None:
        while self.writer.idle():
            continue
        self.durable(self.written)

    @rule(share=SHARES, same=st.booleans())
    def cut(self, share: float, same: bool) -> None:
        """Truncate, and continue with the same frames or in another view."""
        position = self.history.settled(self.decided + round(share * (self.written - self.decided)))
        position = max(position, self.decided)
        if not position:
            return
        self.writer.truncate(position)
        self.written = self.synced = position
        self.lost = None
        if not same:
            self.views += 1
            self.history = self.history.branch(position, self.views)

    # What happens to it

    @rule(reboot=st.booleans())
    def kill(self, reboot: bool) -> None:
        """Kill the gateway: written data is in the page cache, and another boot knows the decided end from the watermark alone."""
        self.storage.dead = True
        self.close()
        self.start(reboot, None)

    @precondition(lambda self: 1 <= self.decided < self.written)
    @rule(share=SHARES)
    def rot(self, share: float) -> None:
        """Corrupt a frame above the frontier while the gateway is down: lost if it was certainly durable, otherwise torn."""
        self.storage.dead = True
        self.close()
        position = self.decided + 1 + round(share * (self.written - self.decided - 1))
        first = max(first for first in list_positions(str(self.path), "seg") if first <= position)
        place = FRAMES_AT + sum(frame.size for frame in self.history.frames[first - 1 : position - 1])
        with (self.path / "log" / f"{first:020d}.seg").open("r+b") as file:
            file.seek(place + 7)
            file.write(b"\xff")
        self.start(True, position)

    def start(self, reboot: bool, rotten: int | None) -> None:
        mark = self.mark()
        if reboot:
            other_boot(self.path)
        self.open()
        state = self.recovered.state
        assert self.recovered.scalars == self.scalars
        assert state.position == (mark[3] if reboot else self.decided)
        assert state.next_offset == self.history.offset_after(state.position)
        whole = self.written
        if rotten is not None:
            self.written = rotten - 1
        self.synced, self.decided = self.written, state.position
        assert list(self.recovered.tail) == self.log[state.position :]
        ends = [mark[:3]]
        if self.lost is not None:  # nothing was written there since
            ends.append((self.lost.last, self.lost.view, self.lost.chain))
        if whole > self.written:  # what stands whole behind the mark may have been voted for
            last = self.history.frames[whole - 1]
            ends.append((whole, last.view, last.header_crc))
        lost = Damage(self.written + 1, *max(ends)) if mark[0] > self.written else None
        assert self.recovered.damage == lost
        if self.lost is not None and self.written < self.lost.last:  # it is lost still
            assert self.recovered.damage is not None
            assert self.recovered.damage.last >= self.lost.last
        self.lost = self.recovered.damage

    def mark(self) -> tuple[int, int, int, int]:
        stored = read_hard_state(str(self.path))
        if stored is None:
            return 0, 0, 0, 0
        mark = newest_mark(str(self.path), stored.mark, list_positions(str(self.path), "seg"))
        return mark.position, mark.view, mark.chain, mark.frontier_position

    # What always holds

    @invariant()
    def what_is_durable_reads_back(self) -> None:
        if not self.synced:
            return
        first = self.synced // 2 + 1
        frames, _ = self.writer.read(first, self.written)
        assert frames
        assert list(frames) == self.history.frames[first - 1 : first - 1 + len(frames)]
        assert frames[-1].position <= self.synced

    @invariant()
    def no_mark_claims_what_was_never_durable(self) -> None:
        assert self.mark()[0] <= max(self.synced, 0 if self.lost is None else self.lost.last)

    def teardown(self) -> None:
        """Everything is written and decided, and reads as if nothing had happened."""
        if not hasattr(self, "writer"):
            return
        self.writer.append(self.history.frames[self.written :])
        self.writer.sync()
        if self.decided < len(self.history.frames):
            decide(self.writer, self.history, self.decided + 1, len(self.history.frames))
        self.close()
        reader = LogReader(self.path)
        assert seen(scan(reader, 0, reader.frontier().offset)) == expected(self.history)
        other_boot(self.path)
        assert [one for one in verify(self.path).damage if not one.derived] == []


def test_a_random_history_leaves_the_expected_log(tmp_path_factory: pytest.TempPathFactory) -> None:
    machine = type("Machine", (Lives,), {"folder": tmp_path_factory.mktemp("lives")})
    run_state_machine_as_test(machine, settings=settings(max_examples=60, stateful_step_count=30, deadline=None))
