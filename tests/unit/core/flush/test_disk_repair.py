"""Tests of the repair of lost frames: they are requested from one gateway after another, only valid chunks are written, and silence
never ends the repair.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from tutti.data.frames.frame import Frame, Kind
from tutti_gateway.core import limits
from tutti_gateway.core.flush.disk_repair import LogRepair
from tutti_gateway.core.outbox import Outbox
from tutti_gateway.core.protocol.actions import RepairLog, Send
from tutti_gateway.core.protocol.events import LogCorrupt
from tutti_gateway.core.protocol.messages import Fetch, Fetched
from tutti_gateway.core.view.view_state import ViewState

SILENCE = limits.RESEND_HEARTBEATS


def chain_of(count: int) -> list[Frame]:
    frames: list[Frame] = []
    for position in range(1, count + 1):
        frame = Frame(Kind.TICK, b"body")
        frame.stamp(1 << 16 | 1, position, frames[-1].header_crc if frames else 0)
        frames.append(frame)
    return frames


LOG = chain_of(20)


class Others:
    """Two other gateways, the nearer one first, as heartbeats show them."""

    def __init__(self) -> None:
        self.beats = {2: SimpleNamespace(view=9, frontier=20), 3: SimpleNamespace(view=9, frontier=20)}
        self.gone: set[int] = set()
        self.round = 0

    def __iter__(self) -> Any:
        return iter([SimpleNamespace(number=number, beat=beat) for number, beat in self.beats.items()])

    def fresh(self, number: int) -> bool:
        return number not in self.gone

    def distance_us(self, number: int) -> int:
        return number

    def round_beats(self) -> int:
        return self.round


class Bench:
    """The repair alone, and its requests."""

    def __init__(self) -> None:
        standing = ViewState()
        standing.me = 1
        self.outbox = Outbox(standing)
        self.others = Others()
        self.mending = LogRepair(cast("Any", SimpleNamespace(outbox=self.outbox)), cast("Any", self.others))

    def rotted(self, first: int, last: int) -> list[object]:
        self.mending.on_corrupt(LogCorrupt(first, last))
        return self.wanted()

    def gets(self, sender: int, frames: list[Frame], first: int = 0) -> list[object]:
        message = Fetched(view=0, first=first or frames[0].position, frames=tuple(frames), source=9, stop=20)
        assert self.mending.on_fetched(sender, message)
        return self.wanted()

    def beats(self, count: int) -> list[object]:
        for _ in range(count):
            self.mending.beat()
        return self.wanted()

    def wanted(self) -> list[object]:
        return [
            (action.to, action.message) if isinstance(action, Send) else [frame.position for frame in action.frames]
            for action in self.outbox.drain(None)
            if isinstance(action, Send | RepairLog)
        ]


def test_a_range_comes_chunk_by_chunk_as_the_disk_writes_it() -> None:
    bench = Bench()
    assert bench.rotted(5, 9) == [(2, Fetch(0, 5, 9))]
    assert bench.gets(2, LOG[4:7]) == [[5, 6, 7]]
    assert bench.beats(50) == []  # the disk is writing: nothing else is asked for
    assert bench.rotted(8, 9) == [(2, Fetch(0, 8, 9))]
    assert bench.gets(2, LOG[7:9]) == [[8, 9]]
    assert bench.rotted(0, 0) == []
    assert bench.beats(50) == []


def wrong_body(frame: Frame) -> Frame:
    other = Frame(Kind.TICK, b"other")
    other.stamp(frame.view, frame.position, 0)
    return other


@pytest.mark.parametrize(
    ("frames", "good"),
    [
        (LOG[4:], [5, 6]),  # more than is wanted
        ([LOG[4], LOG[6]], [5]),  # a gap
        ([LOG[4], wrong_body(LOG[5])], [5]),  # another chain
    ],
)
def test_only_requested_contiguous_frames_go_to_the_disk(frames: list[Frame], good: list[int]) -> None:
    bench = Bench()
    bench.rotted(5, 6)
    assert bench.gets(2, frames) == [good]


def test_a_member_that_cannot_read_it_either_is_asked_again_only_after_all_others() -> None:
    bench = Bench()
    bench.rotted(5, 9)
    assert bench.gets(2, [], first=5) == [(3, Fetch(0, 5, 9))]
    assert bench.gets(3, [], first=5) == []
    assert bench.beats(limits.REPAIR_WAIT_HEARTBEATS - 1) == []
    assert bench.beats(1) == [(2, Fetch(0, 5, 9))]


def test_frames_that_the_disk_refuses_are_requested_from_another() -> None:
    bench = Bench()
    bench.rotted(5, 9)
    bench.gets(2, LOG[4:9])
    assert bench.rotted(5, 9) == [(3, Fetch(0, 5, 9))]


def test_a_silent_or_disconnected_source_is_replaced() -> None:
    bench = Bench()
    bench.rotted(5, 9)
    assert bench.beats(SILENCE - 1) == []
    assert bench.beats(1) == [(3, Fetch(0, 5, 9))]
    bench.others.gone.add(3)
    assert bench.beats(1) == []
    assert bench.beats(limits.REPAIR_WAIT_HEARTBEATS) == [(2, Fetch(0, 5, 9))]


def test_a_member_in_no_view_or_without_the_decision_is_not_asked() -> None:
    bench = Bench()
    bench.others.beats[2].view = 0
    bench.others.beats[3].frontier = 4
    assert bench.rotted(5, 9) == []
    bench.others.beats[3].frontier = 5
    assert bench.beats(1) == [(3, Fetch(0, 5, 9))]


def test_an_unsolicited_answer_is_left_to_others() -> None:
    bench = Bench()
    bench.rotted(5, 9)
    for first, view in ((6, 0), (5, 9)):
        assert not bench.mending.on_fetched(2, Fetched(view=view, first=first, frames=()))


def test_a_distant_member_is_awaited() -> None:
    bench = Bench()
    bench.others.round = 3
    bench.rotted(5, 9)
    assert bench.beats(SILENCE + 5) == []
    assert bench.beats(1) == [(3, Fetch(0, 5, 9))]


def test_an_answer_that_comes_after_the_wait_is_as_good_as_any() -> None:
    bench = Bench()
    bench.rotted(5, 9)
    bench.beats(SILENCE)
    assert bench.gets(2, LOG[4:9]) == [[5, 6, 7, 8, 9]]
    assert not bench.mending.on_fetched(3, Fetched(view=0, first=5, frames=tuple(LOG[4:9])))  # the disk is writing


def test_a_late_answer_causes_no_second_request() -> None:
    bench = Bench()
    bench.rotted(5, 9)
    bench.beats(SILENCE)
    assert bench.gets(2, [], first=5) == []
