"""From places to offsets, and from a range of offsets to Spark's partitions."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

from pyspark.sql.datasource import InputPartition

from gateway.core import limits
from gateway.errors import OffsetOutOfRange
from streaming.options import Place, ReadOptions

if TYPE_CHECKING:
    from streaming.origin import Frontier, Origin

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)


class RecordsPartition(InputPartition):
    """Records [start, end) of log `log`, of `topics` (None: of all)."""

    def __init__(self, log: str, start: int, end: int, topics: tuple[str, ...] | None) -> None:
        super().__init__(None)
        self.log = log
        self.start = start
        self.end = end
        self.topics = topics

    def __repr__(self) -> str:
        """As Spark shows it in its logs."""
        return f"RecordsPartition(log={self.log}, start={self.start}, end={self.end}, topics={self.topics})"


def offset_of(origin: Origin, place: Place, option: str, frontier: Frontier, loss_is_error: bool) -> int:
    """The offset of a place in the log.

    Raises:
        OffsetOutOfRange: an offset beyond the frontier, or below what the log still holds unless `loss_is_error` is False.
    """
    if place == "earliest":
        return frontier.start
    if place == "latest":
        return frontier.offset
    if isinstance(place, datetime):
        return origin.offset_for_time((place - _EPOCH) // _MICROSECOND)
    offset = int(place)
    if offset > frontier.offset:
        raise OffsetOutOfRange(
            f"option {option!r} is {offset}, beyond the frontier {frontier.offset} of {origin.name}: it takes what is committed"
        )
    return held(offset, frontier, origin.name, loss_is_error)


def held(offset: int, frontier: Frontier, name: str, loss_is_error: bool) -> int:
    """`offset`, or the first that the log still holds when lost records are to be passed over.

    Raises:
        OffsetOutOfRange: records from `offset` on are gone, and that is an error.
    """
    if offset < frontier.start and loss_is_error:
        raise OffsetOutOfRange(
            f"records {offset} to {frontier.start - 1} are no longer in the log of {name}: "
            "start later, or set failOnDataLoss to false to pass over them"
        )
    return max(offset, frontier.start)


def partitions(origin: Origin, frontier: Frontier, start: int, end: int, options: ReadOptions) -> list[InputPartition]:
    """Partitions that together hold the records [start, end) of the topics asked for, each once; none when there are none."""
    start = held(start, frontier, origin.name, options.fail_on_data_loss)
    if start >= end:
        return []
    topics = topics_of(origin, options)
    if topics == ():
        return []
    if options.partitions_min is None and end - start <= limits.SPARK_SMALL_RECORDS:
        return [RecordsPartition(frontier.log, start, end, topics)]
    ranges = origin.plan(start, end, options.partitions_min)
    return [RecordsPartition(frontier.log, first, last, topics) for first, last in ranges]


def topics_of(origin: Origin, options: ReadOptions) -> tuple[str, ...] | None:
    """The topics to read, None for all.

    A pattern is matched when a range is planned: the log knows every topic that has a record in it by then, and no topic that
    appears later has one, so the same range gives the same records at any time.
    """
    if options.topics_pattern is None:
        return options.topics
    pattern = re.compile(options.topics_pattern)
    return tuple(sorted(name for name in origin.topics() if pattern.fullmatch(name)))
