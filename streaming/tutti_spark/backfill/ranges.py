"""Resolves command-line positions to the range of a backfill, and reads the checkpoint of a live query."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from tutti.errors import ConfigError, OffsetOutOfRange, UsageError
from tutti.reading.range_bounds import AFTER_9999, read_time
from tutti_spark.common.options import local_path
from tutti_spark.source.offsets import StreamOffset

if TYPE_CHECKING:
    from tutti.sources.source import Frontier, Source

_TICK = re.compile(r"tick:([0-9]{1,20})\Z")
_WHOLE = re.compile(r"[0-9]{1,20}\Z")


class Tick(NamedTuple):
    """The position directly after the tick with this number."""

    number: int


#: A position on the command line: an offset, "earliest", "latest", an aware datetime, or a tick.
Position = int | str | datetime | Tick


def parse_position(option: str, text: str) -> Position:
    """Parse a position from the command line.

    Raises:
        ConfigError: the text is not a position; the message contains the option, the value and the accepted forms.
    """
    word = text.strip()
    if word in ("earliest", "latest"):
        return word
    if _WHOLE.match(word):
        return int(word)
    if found := _TICK.match(word):
        return Tick(int(found[1]))
    try:
        time = read_time(word)
    except ValueError:
        time = None
    except OverflowError as error:
        raise ConfigError(f"{option} {text} is {AFTER_9999}") from error
    if time is not None and time.tzinfo is not None:
        return time
    why = "a time without a zone" if time is not None else "not a position in the log"
    raise ConfigError(
        f"{option} {text} is {why}: it takes an offset (0, 1, 2, ...), earliest, latest, tick:N (after tick N), or an ISO 8601 "
        "time with its zone (2026-01-31T12:00:00Z)"
    )


def offset_of(source: Source, option: str, position: Position, frontier: Frontier) -> int:
    """Return the offset of a position.

    Raises:
        OffsetOutOfRange: the position is above the frontier, or retention has removed it.
    """
    from tutti.sources.source import resolve_bound

    if isinstance(position, Tick):
        return _offset_after_tick(source, option, position.number, frontier)
    return resolve_bound(source, option, position, frontier)


def _offset_after_tick(source: Source, option: str, tick: int, frontier: Frontier) -> int:
    """Return the first offset after a tick, by a binary search over the column `tick`.

    The column contains the number of the last tick before the record, so it never decreases.
    """
    from tutti.data.scan_request import ScanRequest

    if tick > frontier.tick:
        raise OffsetOutOfRange(f"{option} tick:{tick} does not exist yet: the last tick of the log is {frontier.tick}")
    low, high = frontier.start, frontier.offset
    while low < high:
        middle = (low + high) // 2
        found = next(source.scan(ScanRequest(middle, middle + 1, columns=("tick",))))
        if found.batch.column("tick")[0].as_py() >= tick:
            high = middle
        else:
            low = middle + 1
    return low


class Stream(NamedTuple):
    """One stream of a streaming query, which began at offset `begin` and has finished all of its records below `finished`."""

    begin: int
    finished: int


class Live(NamedTuple):
    """State of those streams of a streaming query that read one log, from the query's checkpoint.

    The streams of a query may begin at different offsets (with `latest`). Each stream has its own topics, which the checkpoint does
    not contain.

    Attributes:
        streams: the streams, in the order of the checkpoint.
        complete: True if the checkpoint still has its first batch; otherwise each `begin` is only an upper bound.
    """

    streams: tuple[Stream, ...]
    complete: bool

    @property
    def begins(self) -> list[int]:
        """The different start offsets of the streams, in order."""
        return sorted({stream.begin for stream in self.streams})

    @property
    def finished(self) -> int:
        """The offset below which every stream has finished its records."""
        return min(stream.finished for stream in self.streams)


def live_query(checkpoint: str, log: str) -> Live:
    """Return the state of a query's streams of log `log` from its checkpoint, a local directory.

    Raises:
        UsageError: the directory is not a checkpoint, the query reads a different log, or a file is not readable.
    """
    root = Path(local_path(checkpoint) or checkpoint)
    try:
        plans = {number: _offsets(text) for number, text in _batches(root / "offsets")}
        done = max((number for number, _ in _batches(root / "commits")), default=None)
    except (OSError, ValueError) as error:
        raise UsageError(f"--live {checkpoint} cannot be read ({error}): name the checkpointLocation of a query") from error
    if not plans:
        raise UsageError(
            f"--live {checkpoint} has no offsets/N: name the checkpointLocation of a query that has begun, on this machine"
        )
    if done is not None and done not in plans:
        raise UsageError(f"--live {checkpoint}: the end of batch {done} is missing, because the query is running: try again")
    first_offsets: dict[str, StreamOffset] = {}
    for number in sorted(plans):
        first_offsets = plans[number] | first_offsets
    of_log = [name for name, first in first_offsets.items() if first.log == log]
    if not of_log:
        logs = sorted({first.log for first in first_offsets.values()})
        raise UsageError(f"--live {checkpoint}: its query reads {' and '.join(logs) or 'no log'}, and this is log {log}")
    ends = {} if done is None else {name: end.offset for name, end in plans[done].items()}
    streams = (Stream(first_offsets[name].begin, ends.get(name, first_offsets[name].begin)) for name in sorted(of_log))
    return Live(tuple(streams), complete=0 in plans)


def _batches(directory: Path) -> Iterator[tuple[int, str]]:
    """Yield (number, text) of each batch file in a directory of the checkpoint (`offsets` or `commits`).

    Ignore files with other names, and files that Spark removes in the meantime.
    """
    for file in directory.glob("[0-9]*"):
        if _WHOLE.match(file.name) and file.is_file():
            with suppress(FileNotFoundError):
                yield int(file.name), file.read_text()


def _offsets(text: str) -> dict[str, StreamOffset]:
    """Return the offset of each tutti stream, by the stream's number (version 1 of Spark's log format) or id (version 2).

    Raises:
        UsageError: an offset is corrupt, or a newer release wrote it.
    """
    lines = text.splitlines()
    if not lines:
        raise UsageError("the file of a batch is empty")
    found = {}
    for number, line in enumerate(lines[2:]):
        name, offset = (str(number), line) if lines[0] == "v1" else line.split(":", 1)
        try:
            data = json.loads(offset)
        except ValueError:  # the stream has no offset yet
            continue
        if isinstance(data, dict) and {"log", "offset"} <= set(data):  # skip the offset of another kind of source
            found[name] = StreamOffset.parse(data)
    return found
