"""Resolves starting and ending options to offsets, and divides a range of offsets into Spark partitions."""

from __future__ import annotations

import math
import os
import re
import warnings
from collections.abc import Callable, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Literal

from pyspark.sql.datasource import InputPartition

from tutti import limits
from tutti.errors import OffsetOutOfRange, TuttiError, UsageError
from tutti_spark.common.options import ReadOptions

if TYPE_CHECKING:
    from tutti.sources.source import Frontier, Range, Source


_TOPICS_CHECK_S = 1.0  # longest wait for a gateway that knows all topics; the check only serves a warning
_TOPICS_SHOWN = 10  # maximum number of topics in a message
_JSON_BYTES_PER_NAME = 3  # bytes of JSON around each name: two quotes and a comma


class RecordsPartition(InputPartition):
    """Records [start, end) of log `log`, restricted to `topics` (None: all topics).

    The partition contains the addresses of all known gateways, because a worker may start after all gateways in the options have
    left the group.

    Attributes:
        gateways: host and port of each gateway that the driver knows, in this partition's order of preference.
        log_start: start of the log at the time of planning, below which records come from the archive.
        planned: time of planning in seconds since 1970; set only in the last partition of a range that ends at `latest`.
    """

    def __init__(
        self,
        log: str,
        start: int,
        end: int,
        topics: tuple[str, ...] | None,
        gateways: tuple[tuple[str, int], ...] = (),
        log_start: int = 0,
    ) -> None:
        super().__init__(None)
        self.log = log
        self.start = start
        self.end = end
        self.topics = topics
        self.gateways = gateways
        self.log_start = log_start
        self.planned: float | None = None

    def __repr__(self) -> str:
        """Return the text that Spark's logs show."""
        return f"RecordsPartition(log={self.log}, start={self.start}, end={self.end}, {topics_text(self.topics)})"


def topics_text(topics: tuple[str, ...] | None) -> str:
    """Return the topics as text for a message; of many topics, only the number and the first names."""
    if topics is None:
        return "all topics"
    some = ", ".join(topics[:_TOPICS_SHOWN])
    return f"topics {some}" if len(topics) <= _TOPICS_SHOWN else f"{len(topics)} topics ({some}, ...)"


def offset_of(source: Source, option: Literal["starting", "ending"], options: ReadOptions, frontier: Frontier) -> int:
    """Return the offset that the "starting" or "ending" options mean at the given frontier.

    Raises:
        OffsetOutOfRange: the offset is above the frontier, or below the start of the log while failOnDataLoss is true.
    """
    position, name = (options.start, options.start_name) if option == "starting" else (options.end, options.end_name)
    if position == "earliest":
        return frontier.start
    if position == "latest":
        return frontier.offset
    if isinstance(position, datetime):
        return source.offset_for_time(position)
    offset = int(position)
    if offset > frontier.offset:
        raise OffsetOutOfRange(
            f"option {name!r} is {offset}, above the frontier: {options.origin} has committed up to {frontier.offset}"
        )
    return clamp_to_log_start(offset, frontier, options)


def clamp_to_log_start(offset: int, frontier: Frontier, options: ReadOptions) -> int:
    """Return `offset`, or the start of the log if that is higher; in this case, warn about the skipped records.

    Raises:
        OffsetOutOfRange: retention has removed records from `offset` on, and failOnDataLoss is true.
    """
    if offset >= frontier.start:
        return offset
    removed = f"records {offset} to {frontier.start - 1} are no longer in the log of {options.origin}"
    if options.fail_on_data_loss:
        rest = f"it has {frontier.start} to {frontier.offset - 1}" if frontier.start < frontier.offset else "it has none now"
        raise OffsetOutOfRange(
            f"{removed}, {rest}: start at offset {frontier.start} or later, or set failOnDataLoss to false to skip the removed "
            "records"
        )
    warnings.warn(f"{removed}: they are skipped, because failOnDataLoss is false", stacklevel=2)
    return frontier.start


def frontier_after_trim(source: Source, known: Frontier, error: OffsetOutOfRange) -> Frontier:
    """Return a new frontier after a read within `known` failed with `error`, because retention may have removed records since.

    Raises:
        OffsetOutOfRange: the given `error`, if retention has not moved the start of the log since `known`.
    """
    now = source.frontier()
    if now.start <= known.start:
        raise error
    return now


def partitions(source: Source, frontier: Frontier, start: int, end: int, options: ReadOptions) -> list[InputPartition]:
    """Return partitions that together contain each requested record of [start, end) once; an empty list for an empty range."""
    start = clamp_to_log_start(start, frontier, options)
    if start >= end:
        return []
    topics = topics_of(source, options, end)
    if topics == ():
        return []
    # A small range is one partition, which saves the request for a plan.
    if options.partitions_min is None and end - start <= limits.SPARK_SMALL_RECORDS:
        return [RecordsPartition(frontier.log, start, end, topics, _gateway_orders(source)(0), _log_start(source))]
    try:
        ranges = _split(source, start, end, topics, options)
    except OffsetOutOfRange as error:
        return partitions(source, frontier_after_trim(source, frontier, error), start, end, options)
    orders, log_start = _gateway_orders(source), _log_start(source)
    return [
        RecordsPartition(frontier.log, part.start, part.end, topics, orders(number), log_start)
        for number, part in enumerate(ranges)
    ]


def _log_start(source: Source) -> int:
    """Return the start of the log if the source also has an archive; 0 without an archive."""
    from tutti.sources.tiered import TieredSource

    return source.log_start if isinstance(source, TieredSource) else 0


def _split(source: Source, start: int, end: int, topics: tuple[str, ...] | None, options: ReadOptions) -> Sequence[Range]:
    from tutti.data.scan_request import ScanRequest

    request = ScanRequest(start, end, topics)
    ranges = source.plan(request, splits=options.partitions_min or 1)
    if options.partitions_min is None:
        splits = partition_count(sum(part.bytes for part in ranges), len(os.sched_getaffinity(0)))
        if splits > 1:
            return source.plan(request, splits=splits)
    return ranges


def _gateway_orders(source: Source) -> Callable[[int], tuple[tuple[str, int], ...]]:
    """Return a function from a partition's number to its order of gateways.

    Partitions begin with different gateways, to spread the load. Unresponsive gateways come last.
    """
    responsive = source.responsive
    rest = [address for address in source.addresses if address not in responsive]

    def order(number: int) -> tuple[tuple[str, int], ...]:
        first = number % len(responsive) if responsive else 0
        return tuple((address.host, address.port) for address in (*responsive[first:], *responsive[:first], *rest))

    return order


def partition_count(size: int, processors: int) -> int:
    """Return the number of partitions for a range of `size` bytes.

    The range gets one partition for each processor, unless these would be too small for a task, and more partitions if these would
    be too large. The result is a power of two, as core counts usually are, so that all tasks end at about the same time.
    """
    # Small partitions are inefficient: a task of any size takes 30 ms of CPU time in Python and 20 to 60 ms in the JVM.
    wide = min(processors, size // limits.SPARK_SPLIT_BYTES_MIN)
    return min(1 << round(math.log2(max(wide, size / limits.SPARK_SPLIT_BYTES, 1))), limits.SPLITS_MAX)


def warn_about_missing_topics(source: Source, options: ReadOptions, frontier: Frontier) -> None:
    """Warn if a topic in the options does not exist. The read counts it as empty, because its first record may come later."""
    from tutti.common.deadlines import Deadline
    from tutti.data.scan_request import ScanRequest

    if options.topics is None:
        return
    deadline = Deadline()
    deadline.within(_TOPICS_CHECK_S)
    end = frontier.offset
    try:
        # A scan of an empty range only checks the topics, and is cheaper than a list of all topics.
        for _ in source.scan(ScanRequest(end, end, options.topics, ("offset",), time_left=deadline.left)):
            pass
    except UsageError as error:
        warnings.warn(f"a topic in the options has no records yet, or its name is misspelt: {error}", stacklevel=3)
    except TuttiError:
        return  # the read itself reports a lasting error, and a gateway without a majority may not know a new topic


def topics_of(source: Source, options: ReadOptions, end: int) -> tuple[str, ...] | None:
    """Return the topics to read in a range up to `end`; None for all topics.

    The planner matches a pattern with the topics that exist at `end`: a topic that was created later has no record in the range. So
    a range has the same records at any time and at any gateway.
    """
    if options.topics_pattern is None:
        return options.topics
    pattern = re.compile(options.topics_pattern)
    found = tuple(sorted(topic.name for topic in source.topics(end) if pattern.fullmatch(topic.name)))
    size = sum(len(name) + _JSON_BYTES_PER_NAME for name in found)
    if options.gateways is not None and size > limits.TICKET_TOPICS_BYTES_MAX:
        raise UsageError(
            f"option 'topicsPattern' ({options.topics_pattern!r}) matches {len(found)} topics, whose names have {size} bytes; "
            f"a read from gateways accepts {limits.TICKET_TOPICS_BYTES_MAX}. Match fewer topics, or remove the option and filter "
            "by column 'topic'"
        )
    return found
