"""A `Source` that reads only an archive, from its manifests and Parquet files."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from datetime import datetime

import numpy as np
import pyarrow as pa

from tutti import limits
from tutti.archive.catalog import Archive, ArchivedRange
from tutti.archive.reader import read
from tutti.common.gateway_url import Address
from tutti.data.scan_request import ScanBatch, ScanRequest
from tutti.errors import UsageError
from tutti.sources.source import Frontier, Range, Topic, time_us_of

_PAUSE_S = limits.ARCHIVE_LIST_US / 1e6


class ArchiveSource:
    """Reads an archive up to its end offset, without any gateway. Thread-safe."""

    addresses: tuple[Address, ...] = ()
    responsive = addresses

    def __init__(self, archive: Archive) -> None:
        """Read from `archive`."""
        self.archive = archive

    def frontier(self, beyond: int | None = None, timeout: float = 0.0, patience: float | None = None) -> Frontier:
        """Return the end of the gapless archive; with `beyond`, wait up to `timeout` seconds until the end is above `beyond`."""
        deadline = time.monotonic() + timeout
        while True:
            archive = self.archive
            archive.refresh(soon=True)
            left = deadline - time.monotonic()
            if beyond is None or archive.end > beyond or left <= 0:
                span = archive.span_at(archive.end - 1) if archive.end else None
                manifest = archive.manifest(span) if span is not None else None
                time_us, tick = (manifest.time_max, manifest.tick_last) if manifest is not None else (0, 0)
                return Frontier(archive.log, archive.first, archive.end, 0, time_us, tick, "archive")
            time.sleep(min(_PAUSE_S, left))

    def scan(self, request: ScanRequest) -> Iterator[ScanBatch]:
        """As `Source.scan`. An archive needs no gateway, so the request's limit on waiting for gateways has no effect."""
        if request.topics is not None and not request.absent_ok:
            self._check_topics_exist(request.topics, request.start, request.end)
        yield from read(self.archive, request)

    def _check_topics_exist(self, topics: Sequence[str], start: int, end: int) -> None:
        if start >= end:
            return
        missing = set(topics)
        known: set[str] = set()
        for _, _, span in self.archive.covering(start, end):
            known.update(name for file in self.archive.manifest(span).files for name in file.topics)
            missing -= known
            if not missing:
                return
        names = ", ".join(sorted(known)[:10]) or "none"
        raise UsageError(f"the archive {self.archive.where} has no topic {min(missing)!r} in [{start}, {end}); it has {names}")

    def plan(self, request: ScanRequest, splits: int | None = None, split_bytes: int | None = None) -> list[Range]:
        """Split a range into parts of about equal bytes, at the starts of archived ranges."""
        parts = list(self._ranges(request.start, request.end, request.topics))
        total = sum(part.bytes for part in parts)
        goal = max(1, -(-total // splits)) if splits is not None else split_bytes or limits.SPLIT_BYTES
        return _joined(parts, goal)

    def _ranges(self, start: int, end: int, topics: Sequence[str] | None) -> Iterator[Range]:
        """Yield the parts of [start, end), split where archived ranges meet, with their estimated records and bytes."""
        wanted = None if topics is None else frozenset(topics)
        for low, high, span in self.archive.covering(start, end):
            files = [file for file in self.archive.manifest(span).files if wanted is None or not wanted.isdisjoint(file.topics)]
            share = (high - low) / (span.end - span.first)
            rows = sum(file.records if wanted is None else _records(file.topics, wanted) for file in files)
            yield Range(low, high, round(rows * share), round(sum(file.bytes for file in files) * share))

    def offset_for_time(self, time: int | datetime) -> int:
        """Return the offset of the first record at or after a time (us since 1970, UTC, or an aware datetime), else the end."""
        return self.offset_at(time_us_of(time), self.archive.end)

    def offset_at(self, time_us: int, end: int) -> int:
        """Return the offset of the first record below `end` at or after time `time_us`; `end` if all records are older."""
        for low, high, span in self.archive.covering(self.archive.first, end):
            if self.archive.manifest(span).time_max < time_us:
                continue
            for part in read(self.archive, ScanRequest(low, high, columns=("timestamp",))):
                times = part.batch.column("timestamp").cast(pa.int64()).to_numpy()
                if len(hits := np.flatnonzero(times >= time_us)):
                    return part.next - len(times) + int(hits[0])
        return end

    def tick_end(self, start: int, limit: int, end: int, every: int) -> int:
        """Find a tick in the archive, with the rules of `Source.tick_end`. The archive has no tick after its last record."""
        # First search backwards for the last tick in (start, limit], then forwards for the first tick in (limit, end].
        for low, high, backwards in ((start, limit, True), (max(start, limit), end, False)):
            spans = [span for _, _, span in self.archive.covering(low, min(high + 1, self.archive.end))] if high > low else []
            pairs = list(zip([None, *spans], spans, strict=False))
            for before, span in reversed(pairs) if backwards else pairs:
                found = [offset for offset in self._ticks(before, span, every) if low < offset <= high]
                if found:
                    return found[-1 if backwards else 0]
        return start

    def _ticks(self, before: ArchivedRange | None, span: ArchivedRange, every: int) -> Iterator[int]:
        """Yield the offsets in a range at which a tick with a number divisible by `every` occurs. The range before it is
        `before`.
        """
        manifest = self.archive.manifest(span)
        tick = manifest.tick_first if before is None else self.archive.manifest(before).tick_last
        for number, offset in ((manifest.tick_first, span.first), *manifest.ticks):
            if number // every > tick // every:  # a multiple of `every` lies in (tick, number]
                yield offset
            tick = number

    def bytes_end(self, start: int, end: int, bytes_max: int, topics: Sequence[str] | None = None) -> int:
        """Return the end of the longest prefix of [start, end) that takes about `bytes_max` bytes of files.

        The prefix has at least one record.
        """
        total = 0
        for part in self._ranges(start, end, topics):
            if total + part.bytes > bytes_max:
                share = (bytes_max - total) / part.bytes
                return max(start + 1, part.start + int((part.end - part.start) * share))
            total += part.bytes
        return end

    def bytes_of(self, start: int, end: int, topics: Sequence[str] | None) -> int:
        """Return the approximate number of file bytes that the records of a range take."""
        return sum(part.bytes for part in self._ranges(start, end, topics))

    def topics(self, upto: int = 0) -> list[Topic]:
        """Return all topics with archived records."""
        found: dict[str, Topic] = {}
        for span in self.archive.spans:
            for file in self.archive.manifest(span).files:
                for name, records in file.topics.items():
                    size = file.raw_bytes * records // file.records  # the topic's share of the file
                    new = Topic(name, records, size, file.first, file.last, file.time_min, file.time_max)
                    found[name] = _merge(found[name], new) if name in found else new
        return sorted(found.values())

    def readers(self) -> dict[str, int]:
        """Return an empty dict, because only the log has the committed offsets of named readers."""
        return {}

    def close(self) -> None:
        """Do nothing: no file stays open."""


def _records(topics: dict[str, int], wanted: frozenset[str]) -> int:
    return sum(records for name, records in topics.items() if name in wanted)


def _joined(parts: Sequence[Range], goal: int) -> list[Range]:
    """Combine neighbouring parts until each has about `goal` bytes."""
    found: list[Range] = []
    for part in parts:
        last = found[-1] if found else None
        if last is not None and last.bytes + part.bytes // 2 < goal:
            found[-1] = Range(last.start, part.end, last.rows + part.rows, last.bytes + part.bytes)
        else:
            found.append(part)
    return found


def _merge(old: Topic, new: Topic) -> Topic:
    """Add up one topic's counts from two parts of the log, an earlier part `old` and a later part `new`."""
    return new._replace(
        records=old.records + new.records,
        bytes=old.bytes + new.bytes,
        first_offset=old.first_offset,
        first_time_us=old.first_time_us,
    )
