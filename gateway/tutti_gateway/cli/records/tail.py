"""`tutti tail`: prints committed records, one on each line."""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager, nullcontext
from types import FrameType
from typing import TYPE_CHECKING, Any

import click

from tutti.errors import TuttiError, UsageError
from tutti.reading.range_bounds import Bound
from tutti_gateway.cli.common.gateways import await_gateway
from tutti_gateway.cli.common.interrupts import ImportGuard
from tutti_gateway.cli.common.names import complete_directory, complete_member, complete_topic
from tutti_gateway.cli.common.options import BOUND, url_option
from tutti_gateway.cli.common.output import note
from tutti_gateway.cli.common.waiting import quiet_search

if TYPE_CHECKING:
    import pyarrow as pa

#: Number of offsets in the first step of the backward search for `--last N`. Each further step covers twice as many offsets.
LAST_STEP = 4096
#: Time limit of one poll. A poll cannot be interrupted, so Ctrl-C takes effect only at the end of the poll.
POLL_S = 0.5


@click.command()
@url_option
@click.option(
    "--archive",
    metavar="ARCHIVE",
    shell_complete=complete_directory,
    help="Archive (directory or URL) for records that retention has removed.",
)
@click.option("--topic", "topics", multiple=True, shell_complete=complete_topic, help="Only these topics (repeatable).")
@click.option("--key", help="Only records with this key.")
@click.option(
    "--start",
    type=BOUND,
    help="First offset: a number, earliest, latest or an ISO 8601 time. [default: earliest; latest with --follow]",
)
@click.option(
    "--end", type=BOUND, help="Offset after the last record, in the same form. [default: the frontier; none with --follow]"
)
@click.option("-n", "count", type=click.IntRange(min=0), metavar="N", help="Stop after N records.")
@click.option("--last", type=click.IntRange(min=1), metavar="N", help="Start N records before the end.")
@click.option("--follow", "-f", is_flag=True, help="Continue with new records until Ctrl-C.")
@click.option(
    "--format",
    "form",
    type=click.Choice(["json", "value", "raw"]),
    default="json",
    show_default=True,
    help="json: the whole record; value: its value and a newline; raw: its value only.",
)
@click.option("--unordered", is_flag=True, help="Read unordered records instead of ordered records; all lanes, one after another.")
@click.option(
    "--origin",
    metavar="NAME",
    shell_complete=complete_member,
    help="With --unordered: read one lane only; NAME is its gateway or its own name.",
)
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
    """Print committed records, one on each line.

    A record has the JSON fields offset, topic, key, value, timestamp, headers, gateway, producer, sequence, view and tick. A key or
    value that is not UTF-8 text appears in base64, as key_base64 or value_base64. Times are UTC, ISO 8601 with microseconds.

    If the group is not founded yet, the command waits 10 seconds for the log to start; with --follow, it waits without limit. If no
    gateway answers, the command tries for 10 seconds at the start, or for a minute later, and then ends with exit code 3.

    An unordered record is in the lane of the gateway that received it. The field gateway contains the name of that gateway. Each
    lane has its own offsets. Therefore --last, and numbers for --start and --end, need --origin, which selects a lane.
    """
    lane_arguments = _lane_arguments(unordered, origin, start, end, last) | ({"archive": archive} if archive is not None else {})
    if last is not None and start is not None:
        raise UsageError("--last and --start both set the start: give one of them")
    wanted = key.encode() if key is not None else None
    if last is not None:
        start, until = _start_of_last(url, archive, topics, wanted, end, last, origin, absent_ok=follow)
        end = end if follow else until
    elif start is None:
        start = "latest" if follow else "earliest"
    try:
        with _interrupts() as interrupted:
            # With --follow, the error of a failed search has the same results; with --last, the first search has logged them.
            quiet = follow or last is not None
            _print(url, topics, wanted, start, end, follow, count, form, lane_arguments, interrupted, quiet=quiet)
    except KeyboardInterrupt:
        if not follow:
            raise


def _lane_arguments(
    unordered: bool, origin: str | None, start: Bound | None, end: Bound | None, last: int | None
) -> dict[str, Any]:
    """Return the arguments for `Reader` that select lanes; none for ordered records.

    Raises:
        UsageError: an option for lanes is missing, or is given without --unordered.
    """
    if not unordered:
        if origin is not None:
            raise UsageError(f"--origin {origin} needs --unordered: give both")
        return {}
    if origin is None and last is not None:
        raise UsageError("--last applies to one lane: select a lane with --origin")
    if origin is None and (isinstance(start, int) or isinstance(end, int)):
        raise UsageError(
            "offsets belong to one lane: select a lane with --origin, or give --start and --end as earliest, latest or times"
        )
    return {"ordering": "unordered", "origin": origin}


@contextmanager
def _interrupts() -> Iterator[Callable[[], bool]]:
    """Yield a function that returns True after a Ctrl-C.

    The function is needed, because Python discards a KeyboardInterrupt that is raised in a destructor or callback.
    """
    count = 0

    def handler(number: int, frame: FrameType | None) -> None:
        nonlocal count
        count += 1
        if callable(before):
            before(number, frame)

    before = signal.getsignal(signal.SIGINT)
    signal.signal(signal.SIGINT, handler)
    try:
        yield lambda: count > 0
    finally:
        # After a Ctrl-C, the previous handler may have installed another handler, which must stay.
        if signal.getsignal(signal.SIGINT) is handler:
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
    lane_arguments: dict[str, Any],
    interrupted: Callable[[], bool],
    *,
    quiet: bool,
) -> None:
    with ImportGuard():
        from tutti.reader import Reader
        from tutti.reading.json_lines import with_key
        from tutti_gateway.cli.log.ranges import offset_of_damage

    columns = None if form == "json" else ["key", "value"] if key is not None else ["value"]
    if not follow:
        await_gateway(url)
    with quiet_search() if quiet else nullcontext():
        opened = Reader(url, topics=list(topics) or None, start=start, end=end, follow=follow, columns=columns, **lane_arguments)
    with opened as reader:
        left = count
        report_missing = follow
        while left != 0 and reader.position != reader.end:
            with offset_of_damage(lambda: reader.position):
                batch = reader.poll(POLL_S)
            if interrupted():
                raise KeyboardInterrupt
            if batch is None:
                if report_missing:
                    _report_missing(url, topics)
                report_missing = False
                continue
            rows = with_key(batch, key).slice(0, left)
            _write(rows, form)
            left = left - rows.num_rows if left is not None else None


def _report_missing(url: str, topics: Collection[str]) -> None:
    """Print a note if the log or a topic does not exist yet, because the topic name may be a typing error."""
    from tutti.sources.flight import FlightSource

    try:
        with FlightSource(url) as reads:
            if not reads.frontier().log:
                note("waiting for the log to start: the group is not founded yet; `tutti members` shows the missing gateways")
                return
            existing = [topic.name for topic in reads.topics()] if topics else []
    except TuttiError:
        return  # the reader will report the problem itself
    missing = [topic for topic in topics if topic not in existing]
    if missing:
        note(f"waiting for topic {', '.join(missing)}, which is not in the log yet; the log has {', '.join(existing) or 'none'}")


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
    """Return the offset at which the last `last` matching records before `end` begin, and the offset that `end` means."""
    with ImportGuard():
        from tutti.data.scan_request import ScanRequest
        from tutti.reader import source_of
        from tutti.reading.lane_cursors import find_lane
        from tutti.sources.flight import FlightSource
        from tutti.sources.source import resolve_bound, wait_for_log

    await_gateway(url)
    with FlightSource(url) as log:
        reads = source_of(log, None, archive)
        frontier = reads.frontier() if absent_ok else wait_for_log(reads)
        if origin is not None:
            reads = log.lane_source(find_lane(log, origin))
            frontier = reads.frontier()
        until = frontier.offset if end is None else resolve_bound(reads, "end", end, frontier)
        if not topics and key is None:
            return max(frontier.start, until - last), until
        high, step = until, LAST_STEP
        while high > frontier.start:
            low = max(frontier.start, high - step)
            offsets = [
                offset
                for batch, _, _ in reads.scan(ScanRequest(low, high, topics or None, ("offset", "key"), absent_ok))
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
