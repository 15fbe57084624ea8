"""From the words of the command line to the offsets of a range, and what a live query leaves to a backfill."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from gateway.client.places import read_time
from gateway.errors import ConfigError, OffsetOutOfRange, UsageError
from streaming.offsets import StreamOffset
from streaming.options import local_path

if TYPE_CHECKING:
    from gateway.client.source import Frontier, Source

_TICK = re.compile(r"tick:([0-9]{1,20})\Z")
_WHOLE = re.compile(r"[0-9]{1,20}\Z")


class Tick(NamedTuple):
    """The place behind the tick of that number."""

    number: int


#: An offset, "earliest", "latest", an aware time, or a tick.
Place = int | str | datetime | Tick


def parse_place(option: str, text: str) -> Place:
    """A place as it is written on the command line.

    Raises:
        ConfigError: it is none; names the option, the value and what it takes.
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
    if time is not None and time.tzinfo is not None:
        return time
    why = "a time without a zone" if time is not None else "no place in the log"
    raise ConfigError(
        f"{option} {text} is {why}: it takes an offset (0, 1, 2, ...), earliest, latest, tick:N (behind tick N), or an ISO 8601 "
        "time with its zone (2026-01-31T12:00:00Z)"
    )


def offset_of(source: Source, option: str, place: Place, frontier: Frontier) -> int:
    """The offset of a place.

    Raises:
        OffsetOutOfRange: it is not in the log: beyond its frontier, or removed.
    """
    from gateway.client.source import place_of

    if isinstance(place, Tick):
        return _behind(source, option, place.number, frontier)
    return place_of(source, option, place, frontier)


def _behind(source: Source, option: str, tick: int, frontier: Frontier) -> int:
    """The first record that has a tick of that number, or a later one, before it; each record knows its last one."""
    if tick > frontier.tick:
        raise OffsetOutOfRange(f"{option} tick:{tick} is not there yet: the last tick of the log is {frontier.tick}")
    low, high = frontier.start, frontier.offset
    while low < high:
        middle = (low + high) // 2
        batch = next(iter(source.scan(middle, middle + 1, columns=["tick"])))
        if batch.column("tick")[0].as_py() >= tick:
            high = middle
        else:
            low = middle + 1
    return low


class Live(NamedTuple):
    """What the checkpoint of a streaming query says: it began at `begin` (None: not known any more), and has come to `finished`."""

    begin: int | None
    finished: int


def live_query(checkpoint: str, log: str) -> Live:
    """What the query of a checkpoint (a directory of this machine) has read of `log`.

    Raises:
        UsageError: it is no checkpoint, or its query reads another log.
    """
    root = Path(local_path(checkpoint) or checkpoint)
    plans = {int(file.name): file for file in (root / "offsets").glob("[0-9]*")}
    if not plans:
        raise UsageError(
            f"--live {checkpoint} has no offsets/N: name the checkpointLocation of a query that has begun, on this machine"
        )
    found = {number: list(_offsets(file)) for number, file in sorted(plans.items())}
    logs = sorted({offset.log for offsets in found.values() for offset in offsets})
    if not any(offset.log == log for offsets in found.values() for offset in offsets):
        raise UsageError(f"--live {checkpoint} is of a query that reads {' and '.join(logs) or 'no log'}, and this is log {log}")
    mine = {number: [offset for offset in offsets if offset.log == log] for number, offsets in found.items()}
    begin = min(offset.begin for offset in mine[0]) if mine.get(0) else None
    done = [int(file.name) for file in (root / "commits").glob("[0-9]*")]
    if not done:
        return Live(begin, min(offset.begin for offset in mine[min(mine)]))
    last = mine.get(max(done))
    if not last:
        raise UsageError(f"--live {checkpoint}: it does not say where batch {max(done)} ended; it changes at the moment: try again")
    return Live(begin, min(offset.offset for offset in last))


def _offsets(file: Path) -> Iterator[StreamOffset]:
    for line in file.read_text().splitlines()[2:]:
        try:
            yield StreamOffset.parse(json.loads(line))
        except ValueError:  # another source's
            continue
