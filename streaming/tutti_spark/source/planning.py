"""From places to offsets, and from a range of offsets to Spark's partitions."""

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
from tutti.errors import OffsetOutOfRange, UsageError
from tutti_spark.common.options import ReadOptions

if TYPE_CHECKING:
    from tutti.sources.source import Frontier, Range, Source


_SHOWN = 10  # topics in a message
_QUOTED = 3  # bytes that JSON has for a name beside its own


class RecordsPartition(InputPartition):
    """Records [start, end) of log `log`, of `topics` (None: of all).

    `gateways` are those that were known when it was planned, in the order in which this partition turns to them: a task may begin
    in a process that never asked one, at a time when none of those that the options name is left. `begins` is where the log began
    then: what lies below is read from its archive. `planned` is the time of the plan (seconds since 1970), in the last partition of
    a range that ends at the frontier of that moment.
    """

    def __init__(
        self,
        log: str,
        start: int,
        end: int,
        topics: tuple[str, ...] | None,
        gateways: tuple[tuple[str, int], ...] = (),
        begins: int = 0,
    ) -> None:
        super().__init__(None)
        self.log = log
        self.start = start
        self.end = end
        self.topics = topics
        self.gateways = gateways
        self.begins = begins
        self.planned: float | None = None

    def __repr__(self) -> str:
        """As Spark shows it in its logs."""
        return f"RecordsPartition(log={self.log}, start={self.start}, end={self.end}, {named(self.topics)})"


def named(topics: tuple[str, ...] | None) -> str:
    """Topics in words; of many the first ones."""
    if topics is None:
        return "all topics"
    some = ", ".join(topics[:_SHOWN])
    return f"topics {some}" if len(topics) <= _SHOWN else f"{len(topics)} topics ({some}, ...)"


def offset_of(source: Source, option: Literal["starting", "ending"], options: ReadOptions, frontier: Frontier) -> int:
    """The offset that "starting" or "ending" (`option`) came to, with the frontier as it is.

    Raises:
        OffsetOutOfRange: an offset beyond the frontier, or below what the log still holds while that counts as data loss.
    """
    place, name = (options.start, options.start_name) if option == "starting" else (options.end, options.end_name)
    if place == "earliest":
        return frontier.start
    if place == "latest":
        return frontier.offset
    if isinstance(place, datetime):
        return source.offset_for_time(place)
    offset = int(place)
    if offset > frontier.offset:
        raise OffsetOutOfRange(
            f"option {name!r} is {offset}, beyond the frontier: {options.origin} has committed up to {frontier.offset}"
        )
    return held(offset, frontier, options)


def held(offset: int, frontier: Frontier, options: ReadOptions) -> int:
    """`offset`, or the first that the log still holds where lost records are to be passed over, with a warning.

    Raises:
        OffsetOutOfRange: records from `offset` on are gone, and that counts.
    """
    if offset >= frontier.start:
        return offset
    gone = f"records {offset} to {frontier.start - 1} are no longer in the log of {options.origin}"
    if options.fail_on_data_loss:
        left = f"it has {frontier.start} to {frontier.offset - 1}" if frontier.start < frontier.offset else "it has none by now"
        raise OffsetOutOfRange(f"{gone}, {left}: start later, or set failOnDataLoss to false to pass over them")
    warnings.warn(f"{gone}: they are passed over, as failOnDataLoss is false", stacklevel=2)
    return frontier.start


def trimmed(source: Source, known: Frontier, error: OffsetOutOfRange) -> Frontier:
    """The frontier as retention has left it since it was `known`, where a range that the log held then is refused with `error`.

    Raises:
        OffsetOutOfRange: `error`, as nothing was removed meanwhile.
    """
    now = source.frontier()
    if now.start <= known.start:
        raise error
    return now


def partitions(source: Source, frontier: Frontier, start: int, end: int, options: ReadOptions) -> list[InputPartition]:
    """Partitions that together hold the records [start, end) of the topics asked for, each once; none when there are none."""
    start = held(start, frontier, options)
    if start >= end:
        return []
    topics = topics_of(source, options, end)
    if topics == ():
        return []
    if options.partitions_min is None and end - start <= limits.SPARK_SMALL_RECORDS:
        return [RecordsPartition(frontier.log, start, end, topics, _turns(source)(0), _begins(source))]
    try:
        ranges = _cut(source, start, end, topics, options)
    except OffsetOutOfRange as error:
        return partitions(source, trimmed(source, frontier, error), start, end, options)
    turns, begins = _turns(source), _begins(source)
    return [
        RecordsPartition(frontier.log, part.start, part.end, topics, turns(number), begins) for number, part in enumerate(ranges)
    ]


def _begins(source: Source) -> int:
    """Where the log of a source begins that has an archive, too."""
    from tutti.sources.tiered import Archived

    return source.begins if isinstance(source, Archived) else 0


def _cut(source: Source, start: int, end: int, topics: tuple[str, ...] | None, options: ReadOptions) -> Sequence[Range]:
    ranges = source.plan(start, end, topics, splits=options.partitions_min or 1)
    if options.partitions_min is None:
        splits = splits_of(sum(part.bytes for part in ranges), len(os.sched_getaffinity(0)))
        if splits > 1:
            return source.plan(start, end, topics, splits=splits)
    return ranges


def _turns(source: Source) -> Callable[[int], tuple[tuple[str, int], ...]]:
    """To whom the partition of a number turns: each next one to another gateway first, and to those that are silent last."""
    heard = source.heard
    rest = [address for address in source.addresses if address not in heard]

    def turn(number: int) -> tuple[tuple[str, int], ...]:
        at = number % len(heard) if heard else 0
        return tuple((address.host, address.port) for address in (*heard[at:], *heard[:at], *rest))

    return turn


def splits_of(size: int, processors: int) -> int:
    """Into how many parts to cut a range of `size` bytes: one for each processor of this machine while that leaves parts worth a
    task, more where parts would be large. A power of two, as numbers of cores are, so that tasks end together.
    """
    # A task costs 30 ms of CPU in Python and 20 to 60 ms in the JVM, whatever it reads.
    wide = min(processors, size // limits.SPARK_SPLIT_BYTES_MIN)
    return min(1 << round(math.log2(max(wide, size / limits.SPARK_SPLIT_BYTES, 1))), limits.SPLITS_MAX)


def topics_of(source: Source, options: ReadOptions, end: int) -> tuple[str, ...] | None:
    """The topics to read in a range up to `end`, None for all.

    A pattern is matched when a range is planned: a log that goes as far as its end knows every topic that has a record in it, and
    one that appears later has none in it, so the same range gives the same records at any time and at any gateway.
    """
    if options.topics_pattern is None:
        return options.topics
    pattern = re.compile(options.topics_pattern)
    found = tuple(sorted(topic.name for topic in source.topics(end) if pattern.fullmatch(topic.name)))
    size = sum(len(name) + _QUOTED for name in found)
    if options.gateways is not None and size > limits.TICKET_TOPICS_BYTES_MAX:
        raise UsageError(
            f"option 'topicsPattern' ({options.topics_pattern!r}) matches {len(found)} topics, whose names have {size} bytes; "
            f"a read of gateways takes {limits.TICKET_TOPICS_BYTES_MAX}. Match fewer topics, or leave it out and filter by column "
            "'topic'"
        )
    return found
