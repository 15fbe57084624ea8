"""The streaming reader: chooses the end of each micro-batch and plans its partitions.

One instance lives in a Python process of the driver while the query runs. Workers unpickle copies, of which Spark calls only
`read`.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from time import monotonic
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    ReadMinRows,
    SupportsTriggerAvailableNow,
)

from tutti import limits
from tutti.errors import OffsetOutOfRange
from tutti_spark.source import planning
from tutti_spark.source.frontier_watch import FrontierWatch
from tutti_spark.source.lockstep import Lockstep, scratch_directory
from tutti_spark.source.offsets import StreamOffset, batch_range, check_log, next_end
from tutti_spark.source.open_log import source_of
from tutti_spark.source.partition_reader import read_partition
from tutti_spark.source.query_reports import Reporter
from tutti_spark.source.shared_query_position import SharedPosition

if TYPE_CHECKING:
    import pyarrow as pa

    from tutti.sources.source import Frontier, Source
    from tutti_spark.common.options import ReadOptions

MS = 1000
_FLUSH_SECONDS = 2.0


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads the committed log as it grows. The offsets that Spark gets never exceed the frontier."""

    def __init__(self, options: ReadOptions) -> None:
        self._options = options
        self._lockstep = None if options.lockstep is None else Lockstep(options.lockstep)
        self._open_source: Source | None = None
        self._frontier_watch: FrontierWatch | None = None
        self._initial: StreamOffset | None = None
        self._target: int | None = None
        self._processed: int | None = None
        self._open_reporter: Reporter | None = None
        self._position: SharedPosition | None = None
        # The last search that found no tick to end a batch, as (start of the batch, newest tick of the log, end of the search).
        # While the log has no newer tick, the next search for this batch reads only the records after the end of this search.
        self._tick_search = (-1, -1, 0)
        # Last result for `maxBytesPerTrigger`, as (begin, end, found): the batch [begin, end) is shortened to [begin, found).
        self._bytes_limit = (-1, -1, -1)
        self._triggered: float | None = None  # monotonic time of the last batch

    def __reduce__(self) -> tuple[type[StreamReader], tuple[ReadOptions]]:
        """Pickle only the options, because workers need no other attribute."""
        return StreamReader, (self._options,)

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's name
        """Return the start of a query without a checkpoint. Spark calls this twice, so both calls return the first result."""
        if self._initial is None:
            frontier = self._watch.frontier()

            def decide() -> int:
                return planning.offset_of(self._source, "starting", self._options, frontier)

            start = self._options.start
            terms = {"startingTimestamp" if isinstance(start, datetime) else "startingOffset": str(start)}
            offset = self._lockstep.initial(terms, frontier.log, decide) if self._lockstep else decide()
            self._initial = StreamOffset.initial(frontier.log, offset)
        return self._initial.data()

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802 - Spark's name
        """Return one of the limits in the options, because Spark accepts only one. `latestOffset` applies all of them."""
        options = self._options
        if self._lockstep is not None:
            self._lockstep.join()  # early enough: Spark requests the limits of all sources before it requests any offset
        if options.query_name and options.gateways is not None and self._position is None:
            self._position = SharedPosition(options.query_name, scratch_directory("queryName"))
        if options.records_max is not None:
            return ReadMaxRows(options.records_max)
        if options.bytes_max is not None:
            return ReadMaxBytes(options.bytes_max)
        return ReadAllAvailable() if options.records_min is None else ReadMinRows(options.records_min)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 - Spark's name
        """Store the present frontier as the end of this run."""
        self._target = self._source.frontier().offset

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802 - Spark's name
        """Return the end of the next batch. Return `start` unchanged if no batch is possible yet."""
        begin = StreamOffset.parse(start)
        frontier = self._frontier(begin)
        if self._processed is None:  # once a run, at its first batch
            planning.warn_about_missing_topics(self._source, self._options, frontier)
        self._processed = begin.offset
        self._reporter.processed(begin.offset)
        if self._lockstep is None:
            end = self._decide(begin, limit)
        else:
            end = self._lockstep.end(self._terms, begin.log, begin.offset, lambda: self._decide(begin, limit))
        if end == begin.offset:
            if self._target is not None:
                self._reporter.flush(_FLUSH_SECONDS)  # after this call, the run is complete and its process may end
            return start
        self._triggered = monotonic()
        found = StreamOffset(begin.log, end, begin.offset)
        self._frontier(found)  # wait for the frontier, because the leader of a lockstep may have seen a higher one
        return found.data()

    def _decide(self, begin: StreamOffset, limit: ReadLimit) -> int:
        """Choose and return the end of the batch that starts at `begin`. Return the start if no batch is possible yet."""
        frontier = self._frontier(begin)
        available = frontier.offset if self._target is None else min(frontier.offset, self._target)
        limited = not isinstance(limit, ReadAllAvailable)  # the trigger `once` reads all records, without the limits in the options
        if available <= begin.offset or (limited and self._waits_for_more(available - begin.offset)):
            return begin.offset
        while True:
            try:
                return self._batch_end(begin.offset, available, frontier, limited)
            except OffsetOutOfRange as error:
                frontier = planning.frontier_after_trim(self._source, frontier, error)
                planning.clamp_to_log_start(begin.offset, frontier, self._options)

    def _waits_for_more(self, records: int) -> bool:
        """Return True if the batch waits for `minRecordsPerTrigger`, for at most `maxTriggerDelay`. A final batch never waits."""
        options = self._options
        if options.records_min is None or records >= options.records_min or self._target is not None or self._triggered is None:
            return False
        return monotonic() - self._triggered < options.delay_ms / MS

    def _batch_end(self, begin: int, available: int, frontier: Frontier, limited: bool) -> int:
        """Return the end of the batch. Return `begin` if no end is possible yet.

        Bytes and ticks count only from the start of the log, because retention may have removed the first records of the batch.
        """
        every = self._options.cut_ticks
        end = next_end(begin, available, self._options.records_max if limited else None)
        if every is None:
            return self._bytes_end(begin, end, frontier.start) if limited else end
        known_begin, known_tick, searched_upto = self._tick_search
        known = (known_begin, known_tick) == (begin, frontier.tick)
        if available <= (searched_upto if known else begin):
            return begin
        upto = self._bytes_end(begin, end, frontier.start) if limited else end
        start = max(begin, searched_upto - 1 if known else begin, frontier.start)
        if start < available and (found := self._source.tick_end(start, upto, available, every)) > start:
            return found
        # Spark calls this every 10 ms, so the next call searches only new records, or all records after a new tick.
        # The next search includes the last searched offset again, because a tick at this offset may be decided later.
        self._tick_search = (begin, frontier.tick, available)
        return begin

    def _bytes_end(self, begin: int, end: int, low: int) -> int:
        """Return the offset at which `maxBytesPerTrigger` ends a batch of [begin, end).

        `low` is the first available offset of the log.
        """
        most = self._options.bytes_max
        if most is None or max(begin, low) >= end:
            return end
        known_begin, known_end, found = self._bytes_limit
        if known_begin != begin or (found == known_end and end > known_end):
            topics = planning.topics_of(self._source, self._options, end)
            found = end if topics == () else self._source.bytes_end(max(begin, low), end, most, topics)
            self._bytes_limit = (begin, end, found)
        return min(found, end)

    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802 - Spark's name
        """Return the frontier and the query's lag, which Spark shows in `sources[].latestOffset` of the query's progress."""
        frontier = self._watch.frontier()
        records, milliseconds = self._watch.lag_at(frontier.offset if self._processed is None else self._processed)
        return {"log": frontier.log, "offset": frontier.offset, "lagRecords": records, "lagMs": milliseconds}

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        """Plan the batch that ends at `end`. A repeated call plans the same records."""
        last = StreamOffset.parse(end)
        first, after = batch_range(StreamOffset.parse(start), last)
        frontier = self._frontier(last)
        return planning.partitions(self._source, frontier, first, after, self._options)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the records of one partition as Arrow batches of the declared schema."""
        return read_partition(self._options, partition)

    def commit(self, end: dict[str, Any]) -> None:
        """Do nothing, because Spark's checkpoint stores the progress, and a query never deletes records."""

    def stop(self) -> None:
        """Stop the threads and release the locks."""
        if self._open_reporter is not None:
            self._open_reporter.stop()
        if self._position is not None:
            self._position.leave()
        if self._lockstep is not None:
            self._lockstep.leave()
        if self._frontier_watch is not None:
            self._frontier_watch.stop()

    def _frontier(self, known: StreamOffset) -> Frontier:
        """Check that the frontier is in the log of `known`. Wait until the frontier reaches `known`, and return the frontier."""
        check_log(known, self._watch.frontier().log, self._options.origin)
        return self._watch.frontier(known.offset)

    @property
    def _terms(self) -> dict[str, str]:
        """Options that must be equal in all streams of a lockstep, because the leader decides the end for all streams."""
        options = self._options
        given = {
            "cut": options.cut_ticks and f"tick:{options.cut_ticks}",
            "maxRecordsPerTrigger": options.records_max,
            "minRecordsPerTrigger": options.records_min,
            "maxTriggerDelay": options.records_min and f"{options.delay_ms}ms",
        }
        return {option: str(value) for option, value in given.items() if value is not None}

    @property
    def _source(self) -> Source:
        if self._open_source is None:
            self._open_source = source_of(self._options)
        return self._open_source

    @property
    def _reporter(self) -> Reporter:
        if self._open_reporter is None:
            position, log = self._position, self._watch.frontier().log
            least = (lambda offset: offset) if position is None else (lambda offset: position.least(log, offset))
            self._open_reporter = Reporter(self._source, self._options, self._watch.lag_at, least)
        return self._open_reporter

    @property
    def _watch(self) -> FrontierWatch:
        if self._frontier_watch is None:
            # A tick does not end a long poll, because it adds no record; so if batches end at ticks, poll once per tick.
            microseconds = limits.SPARK_POLL_US if self._options.cut_ticks is None else limits.TICK_INTERVAL_US
            self._frontier_watch = FrontierWatch(self._source, self._options.origin, microseconds / 1e6)
        return self._frontier_watch
