"""Records that retention removes between the plan of a micro-batch and its tasks."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from gateway.client.source import Piece, Range
from gateway.errors import OffsetOutOfRange
from streaming import origin
from streaming.options import ReadOptions
from streaming.planning import RecordsPartition, partitions
from tests.unit.streaming.fakes import FakeLog


class ShrinkingLog(FakeLog):
    """Gives a few records at a time; what is removed is told to who asks for it."""

    def __init__(self, starts: list[int]) -> None:
        super().__init__(100, start=0)
        self._starts = starts

    def pieces(self, start: int, end: int, *asked: object, **how: object) -> Iterator[Piece]:
        for low in range(start, end, 10):
            if low < self.start:
                raise OffsetOutOfRange(f"the log begins at offset {self.start}")
            yield from super().pieces(low, min(low + 10, end))
            if self._starts:
                self.start = self._starts.pop(0)


def read(log: ShrinkingLog, monkeypatch: pytest.MonkeyPatch, passing: bool) -> list[int]:
    monkeypatch.setattr(origin, "source_of_log", lambda *_: log)
    options = ReadOptions(gateways="tutti://h:1", columns=("offset",), fail_on_data_loss=not passing)
    found: list[int] = []
    for piece in origin.pieces_of(options, RecordsPartition("log-1", 0, 60, None)):
        found += piece.offsets()
    return found


def test_what_is_left_is_given_once_and_what_is_gone_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """Proves that a task goes on behind what was removed under it, twice, with a warning for each."""
    with pytest.warns(UserWarning, match="were removed from the log of") as told:
        assert read(ShrinkingLog([25, 40]), monkeypatch, passing=True) == [*range(10), *range(25, 35), *range(40, 60)]
    assert [str(warning.message)[:19] for warning in told] == ["records 10 to 24 we", "records 35 to 39 we"]


def test_nothing_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.warns(UserWarning, match="records 10 to 59 were removed"):
        assert read(ShrinkingLog([90]), monkeypatch, passing=True) == list(range(10))


def test_by_default_it_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(OffsetOutOfRange, match=r"records 10 to 59 .* could not be read .* failOnDataLoss"):
        read(ShrinkingLog([25]), monkeypatch, passing=False)


class TrimmedLog(FakeLog):
    """Retention goes on when the first plan is asked for."""

    def plan(self, start: int, end: int, *asked: object, **how: object) -> list[Range]:
        if self.start < 25:
            self.start = 25
            raise OffsetOutOfRange(f"the range's start is offset {start} and this log begins at {self.start}")
        return super().plan(start, end)


def test_what_goes_while_a_micro_batch_is_planned_is_passed_over_too() -> None:
    """Proves that the plan is made anew from what is left; it ended the query."""
    log = TrimmedLog(100)
    options = ReadOptions(gateways="tutti://h:1", fail_on_data_loss=False)
    with pytest.warns(UserWarning, match="records 0 to 24 are no longer in the log"):
        (part,) = partitions(log, log.frontier(), 0, 60, options)
    assert isinstance(part, RecordsPartition)
    assert (part.start, part.end) == (25, 60)
    with pytest.raises(OffsetOutOfRange, match="set failOnDataLoss to false to pass over them"):
        partitions(TrimmedLog(100), log.frontier()._replace(start=0), 0, 60, ReadOptions(gateways="tutti://h:1"))
