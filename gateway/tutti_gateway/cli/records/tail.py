"""`tutti tail`: committed records, one a line."""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import TYPE_CHECKING, Any

import click

from tutti.errors import TuttiError, UsageError
from tutti.reading.positions import Bound
from tutti_gateway.cli.common.interrupts import Loading
from tutti_gateway.cli.common.options import BOUND, url_option
from tutti_gateway.cli.common.output import note

if TYPE_CHECKING:
    import pyarrow as pa

#: How far back from the end the last N records are looked for at first; doubled until they are found.
LAST_STEP = 4096
#: A wait for records cannot be interrupted: Ctrl-C is heard after it.
POLL_S = 0.5


@click.command()
@url_option
@click.option("--archive", metavar="ARCHIVE", help="The log's archive, a directory or a URL, for what the log has not any more.")
@click.option("--topic", "topics", multiple=True, help="Only these topics (may be given several times).")
@click.option("--key", help="Only records with this key.")
@click.option(
    "--start", type=BOUND, help="First offset: a number, earliest, latest or an ISO 8601 time. [earliest; latest with --follow]"
)
@click.option("--end", type=BOUND, help="The offset to stop before, likewise. [what is committed now; none with --follow]")
@click.option("-n", "count", type=click.IntRange(min=0), metavar="N", help="Stop after N records.")
@click.option("--last", type=click.IntRange(min=1), metavar="N", help="Begin N records before the end.")
@click.option("--follow", "-f", is_flag=True, help="Go on as records commit, until Ctrl-C.")
@click.option(
    "--format",
    "form",
    type=click.Choice(["json", "value", "raw"]),
    default="json",
    show_default=True,
    help="The whole record as JSON; its value and a newline; its value alone.",
)
@click.option("--unordered", is_flag=True, help="Unordered records in place of the ordered ones: all lanes, one after another.")
@click.option("--origin", metavar="NAME", help="With --unordered only the lane of this gateway, or the lane NUMBER-INCARNATION.")
def tail(
    url: str,
    archive: str | None,
    topics: tuple[str, ...],
    key: str | None,
    start: Bound | None,
    end: Bound | None,
    count: int | None,
    last: int | None,
    follow: bool,
    form: str,
    unordered: bool,
    origin: str | None,
) -> None:
    """Print committed records, one a line.

    JSON fields: offset, topic, key, value, timestamp, headers, gateway, producer, sequence, view, tick. Keys and values that
    are not UTF-8 come as key_base64 and value_base64. Times are UTC, ISO 8601 with microseconds.

    Before the group is founded there is no log: that it begins is waited for, 10 seconds, or with --follow until it has; a reader
    whose gateways do not answer any more looks for one for a minute. Exit code 3 when that is over.

    Unordered records stand in the lane of the gateway that took them (field gateway), in order within it; offsets are the lane's.
    Numbers for --start and --end, and --last, take one lane: name it with --origin.
    """
    which = _lanes(unordered, origin, start, end, last) | ({"archive": archive} if archive is not None else {})
    if last is not None and start is not None:
        raise UsageError("--last and --start both say where to begin: give one of them")
    wanted = key.encode() if key is not None else None
    if last is not None:
        start, until = _start_of_last(url, archive, topics, wanted, end, last, origin, absent_ok=follow)
        end = end if follow else until
    elif start is None:
        start = "latest" if follow else "earliest"
    try:
        with _interrupts() as interrupted:
            _print(url, topics, wanted, start, end, follow, count, form, which, interrupted)
    except KeyboardInterrupt:
        if not follow:
            raise


def _lanes(unordered: bool, origin: str | None, start: Bound | None, end: Bound | None, last: int | None) -> dict[str, Any]:
    """What the reader is told of lanes: nothing for ordered records.

    Raises:
        UsageError: options that do not go together.
    """
    if not unordered:
        if origin is not None:
            raise UsageError(f"--origin {origin} is of unordered records: give --unordered, too")
        return {}
    if origin is None and last is not None:
        raise UsageError("--last counts the records of one lane: name it with --origin")
    if origin is None and (isinstance(start, int) or isinstance(end, int)):
        raise UsageError("offsets are of one lane: name it with --origin, or give --start and --end as earliest, latest or times")
    return {"ordering": "unordered", "origin": origin}


@contextmanager
def _interrupts() -> Iterator[Callable[[], bool]]:
    """Remember a Ctrl-C: where it comes while a library's destructor or callback runs, the exception that it raises is lost."""
    count = 0

    def told(number: int, frame: FrameType | None) -> None:
        nonlocal count
        count += 1
        if callable(before):
            before(number, frame)

    before = signal.getsignal(signal.SIGINT)
    signal.signal(signal.SIGINT, told)
    try:
        yield lambda: count > 0
    finally:
        if signal.getsignal(signal.SIGINT) is told:  # who was told may have set another one, for the next time
            signal.signal(signal.SIGINT, before)


def _print(
    url: str,
    topics: tuple[str, ...],
    key: bytes | None,
    start: Bound,
    end: Bound | None,
    follow: bool,
    count: int | None,
    form: str,
    which: dict[str, Any],
    interrupted: Callable[[], bool],
) -> None:
    with Loading():
        from tutti.reader import Reader
        from tutti.reading.json_lines import with_key
        from tutti_gateway.cli.log.ranges import offset_of_damage

    columns = None if form == "json" else ["key", "value"] if key is not None else ["value"]
    with Reader(url, topics=list(topics) or None, start=start, end=end, follow=follow, columns=columns, **which) as reader:
        left = count
        tells = follow
        while left != 0 and reader.position != reader.end:
            with offset_of_damage(lambda: reader.position):
                batch = reader.poll(POLL_S)
            if interrupted():
                raise KeyboardInterrupt
            if batch is None:
                if tells:
                    _tell_absent(url, topics)
                tells = False
                continue
            rows = with_key(batch, key).slice(0, left)
            _write(rows, form)
            left = left - rows.num_rows if left is not None else None


def _tell_absent(url: str, topics: Collection[str]) -> None:
    """Say what is not there yet: the log, or topics that nobody has sent to, whose name may not be what was meant."""
    from tutti.sources.flight import Reads

    try:
        with Reads(url) as reads:
            if not reads.frontier().log:
                note("waiting for the log to begin, as the group is not founded yet: `tutti members` says who is missing")
                return
            there = [topic.name for topic in reads.topics()] if topics else []
    except TuttiError:
        return  # whoever follows finds out by itself what is wrong
    absent = [topic for topic in topics if topic not in there]
    if absent:
        note(f"waiting for topic {', '.join(absent)}, which the log does not hold yet: it holds {', '.join(there) or 'none'}")


def _write(rows: pa.RecordBatch, form: str) -> None:
    from tutti.reading.json_lines import json_lines, values

    if not rows.num_rows:
        return
    if form == "json":
        text = b"\n".join(json_lines(rows)) + b"\n"
    else:
        text = b"".join((value or b"") + (b"\n" if form == "value" else b"") for value in values(rows))
    sys.stdout.buffer.write(text)
    sys.stdout.buffer.flush()


def _start_of_last(
    url: str,
    archive: str | None,
    topics: tuple[str, ...],
    key: bytes | None,
    end: Bound | None,
    last: int,
    origin: str | None,
    *,
    absent_ok: bool,
) -> tuple[int, int]:
    """The offset of the record that is `last` records before `end` among those wanted, and the end as an offset."""
    with Loading():
        from tutti.reader import source_of
        from tutti.reading.lane_cursors import lane_named
        from tutti.sources.flight import Reads
        from tutti.sources.source import begun, place_of

    with Reads(url) as log:
        reads = source_of(log, None, archive)
        frontier = reads.frontier() if absent_ok else begun(reads)
        if origin is not None:
            reads = log.of_lane(lane_named(log, origin))
            frontier = reads.frontier()
        until = frontier.offset if end is None else place_of(reads, "end", end, frontier)
        if not topics and key is None:
            return max(frontier.start, until - last), until
        high, step = until, LAST_STEP
        while high > frontier.start:
            low = max(frontier.start, high - step)
            offsets = [
                offset
                for batch in reads.scan(low, high, topics or None, ["offset", "key"], absent_ok=absent_ok)
                for offset in _offsets(batch, key)
            ]
            if len(offsets) >= last:
                return offsets[-last], until
            last -= len(offsets)
            high, step = low, step * 2
        return frontier.start, until


def _offsets(batch: pa.RecordBatch, key: bytes | None) -> list[int]:
    from tutti.reading.json_lines import with_key

    found: list[Any] = with_key(batch, key).column("offset").to_pylist()
    return found
