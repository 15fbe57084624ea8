"""Tests of records that retention removes between the plan of a micro-batch and its tasks."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from pyspark.sql.streaming.datasource import ReadMaxRows

from tests.unit.streaming.fake_log import FakeLog, wait_until
from tutti.data.scan_request import ScanBatch, ScanRequest
from tutti.errors import OffsetOutOfRange
from tutti_spark.common.options import ReadOptions
from tutti_spark.source import partition_reader, stream
from tutti_spark.source.planning import RecordsPartition, partitions
from tutti_spark.source.stream import StreamReader


class ShrinkingLog(FakeLog):
    """Returns a few records at a time, and raises for removed ones."""

    def __init__(self, starts: list[int]) -> None:
        super().__init__(100, start=0)
        self._starts = starts

    def scan(self, request: ScanRequest) -> Iterator[ScanBatch]:
        for low in range(request.start, request.end, 10):
            if low < self.start:
                raise OffsetOutOfRange(f"the log begins at offset {self.start}")
            yield from super().scan(ScanRequest(low, min(low + 10, request.end)))
            if self._starts:
                self.start = self._starts.pop(0)


def read(log: ShrinkingLog, monkeypatch: pytest.MonkeyPatch, passing: bool) -> list[int | None]:
    monkeypatch.setattr(partition_reader, "source_of_log", lambda *_: log)
    options = ReadOptions(gateways="tutti://h:1", columns=("offset",), fail_on_data_loss=not passing)
    found: list[int | None] = []
    for batch in partition_reader.read_partition(options, RecordsPartition("log-1", 0, 60, None)):
        found += batch.column("offset").to_pylist()
    return found


def test_remaining_records_are_returned_once_and_lost_ones_are_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    """Proves that a task continues after records removed under it, twice, with a warning for each."""
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
    """Retention removes more at the first request for a range."""

    def check_range(self, start: int, end: int) -> None:
        self.start = max(self.start, 25)
        super().check_range(start, end)


def test_records_lost_while_a_micro_batch_is_planned_are_skipped_too() -> None:
    """Proves that the plan is repeated from the remaining records; it ended the query before."""
    log = TrimmedLog(100)
    options = ReadOptions(gateways="tutti://h:1", fail_on_data_loss=False)
    with pytest.warns(UserWarning, match="records 0 to 24 are no longer in the log"):
        (part,) = partitions(log, log.frontier(), 0, 60, options)
    assert isinstance(part, RecordsPartition)
    assert (part.start, part.end) == (25, 60)
    with pytest.raises(OffsetOutOfRange, match="set failOnDataLoss to false to skip the removed records"):
        partitions(TrimmedLog(100), log.frontier()._replace(start=0), 0, 60, ReadOptions(gateways="tutti://h:1"))


LIMITS: dict[str, dict[str, Any]] = {
    "bytes": {"bytes_max": 10},
    "ticks": {"cut_ticks": 1},
    "small batches that end at ticks": {"cut_ticks": 1, "records_max": 1},
}


@pytest.fixture
def stream_of(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., StreamReader]]:
    made: list[StreamReader] = []

    def make(log: FakeLog, **options: Any) -> StreamReader:
        monkeypatch.setattr(stream, "source_of", lambda _: log)
        made.append(StreamReader(ReadOptions(gateways="tutti://h:1", **options)))
        return made[-1]

    yield make
    for reader in made:
        reader.stop()


@pytest.mark.parametrize("limit", LIMITS)
def test_records_lost_during_the_search_for_the_end_of_a_micro_batch_are_skipped_or_reported(
    stream_of: Callable[..., StreamReader], limit: str
) -> None:
    """Proves that the end is looked for anew in what is left, or that it is said what is gone and which option decides."""
    options = LIMITS[limit]
    start = {"log": "log-1", "offset": 5, "from": 5}
    log = trimmed_log()
    with pytest.warns(UserWarning, match="records 5 to 24 are no longer in the log of .*: they are skipped"):
        end = stream_of(log, fail_on_data_loss=False, **options).latestOffset(start, ReadMaxRows(1))
    assert end == {"log": "log-1", "offset": 35 if limit == "bytes" else 30 if "records_max" in options else 70, "from": 5}
    with pytest.raises(OffsetOutOfRange, match=r"records 5 to 24 are no longer in the log of .* set failOnDataLoss to false"):
        stream_of(trimmed_log(), **options).latestOffset(start, ReadMaxRows(1))


def trimmed_log() -> TrimmedLog:
    log = TrimmedLog(100)
    log.ticks, log.tick = [(1, 0, 20), (2, 0, 30), (3, 0, 70)], 3
    return log


def test_small_micro_batches_that_end_at_ticks_continue_after_lost_records(stream_of: Callable[..., StreamReader]) -> None:
    """Proves that a limit which lies in what is gone ends a batch at the first tick that is left; it ended the query."""
    log = trimmed_log()
    log.start = 40
    reader = stream_of(log, fail_on_data_loss=False, cut_ticks=1, records_max=1)
    end = reader.latestOffset({"log": "log-1", "offset": 5, "from": 5}, ReadMaxRows(1))
    assert end == {"log": "log-1", "offset": 70, "from": 5}
    log.start = 100
    gone = stream_of(log, fail_on_data_loss=False, cut_ticks=1, records_max=1)
    assert gone.latestOffset(end, ReadMaxRows(1)) is end, "there is no tick yet, and nothing to look through"
    gone.prepareForTriggerAvailableNow()
    log.start = 150
    log.set(200)
    wait_until(lambda: gone._watch.frontier().start == 150)
    later = {"log": "log-1", "offset": 80, "from": 70}
    assert gone.latestOffset(later, ReadMaxRows(1)) is later, "all that a run was to read is gone, its ticks too"


def test_a_range_that_is_refused_for_another_reason_is_an_error(stream_of: Callable[..., StreamReader]) -> None:
    """Proves that ranges that retention did not remove are not requested again and again."""

    class Refusing(FakeLog):
        def check_range(self, start: int, end: int) -> None:
            raise OffsetOutOfRange(f"no directory holds offset {start}")

    with pytest.raises(OffsetOutOfRange, match="no directory holds offset 5"):
        stream_of(Refusing(100), bytes_max=1).latestOffset({"log": "log-1", "offset": 5, "from": 5}, ReadMaxRows(1))
