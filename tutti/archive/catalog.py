"""Which ranges an archive holds, by the names of their manifests, and what these say."""

from __future__ import annotations

import os
import threading
import time
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Iterator
from itertools import pairwise
from typing import NamedTuple

import pyarrow as pa

from tutti import limits
from tutti.archive.layout import (
    MARKER,
    PUT_BACK_MARKER,
    RANGES,
    Manifest,
    Marker,
    decode_manifest,
    decode_marker,
    encode_marker,
    range_of,
)
from tutti.archive.parquet import damaged
from tutti.archive.store import LocalStore, Store, open_store
from tutti.errors import Damaged, FormatError, OffsetOutOfRange, WrongDirectory


class Span(NamedTuple):
    """A range of the archive: the offsets [first, end), and its manifest's name."""

    first: int
    end: int
    name: str


class Archive:
    """An archive, opened for reading, or for what adds ranges to it. Thread-safe.

    Ranges of one log may overlap, where two who archive began at different offsets: a record is the same in each.

    Args:
        where: a directory, or a URL of pyarrow's or fsspec's.
        log: uuid of the only log that will do; "" takes that which it is of.
        make: begin an archive of `log` where there is none.

    Raises (all methods):
        ConfigError, WrongDirectory: it is no archive, or that of another log.
        Damaged: what was asked for is not what was written; the message names the file.
        Unavailable: it cannot be read now.
    """

    def __init__(self, where: str | os.PathLike[str], log: str = "", *, make: bool = False) -> None:
        """Read the marker and list the ranges."""
        self.store: Store = open_store(where)
        if isinstance(self.store, LocalStore):
            self.store.check_directory()
            if make:
                self.store.check_writable()
        self.log = self._marker(log, make).log
        if log and self.log != log:
            raise WrongDirectory(f"{self.store.where} is the archive of log {self.log}, and not of log {log}: name another one")
        self._lock = threading.Lock()
        self._spans: list[Span] = []
        self._reaching: list[Span] = []  # those that reach further than all before them: what they have not, none has
        self._end = 0
        self._manifests: OrderedDict[str, Manifest] = OrderedDict()
        self._listed = 0.0
        self.refresh()

    def _marker(self, log: str, make: bool) -> Marker:
        where = self.store.where
        for last in (False, True):
            try:
                return decode_marker(self.store.read(MARKER).to_pybytes(), where)
            except FileNotFoundError:
                if last or not make:
                    break
            if self.store.names(RANGES):
                raise Damaged(f"{where}/{MARKER} is gone, and ranges are there; {PUT_BACK_MARKER}")
            self.store.create(MARKER, encode_marker(Marker(log=log)))
        raise WrongDirectory(f"{where} is no archive: there is no {MARKER}; `tutti archive run` begins one")

    @property
    def where(self) -> str:
        """The archive, as messages name it."""
        return self.store.where

    @property
    def first(self) -> int:
        """The first offset that it holds; 0 while it holds nothing."""
        with self._lock:
            return self._spans[0].first if self._spans else 0

    @property
    def end(self) -> int:
        """All records from `first` on, up to this offset, are in it."""
        with self._lock:
            return self._end

    @property
    def furthest(self) -> int:
        """The end of its last record, whatever is missing before; 0 while it holds nothing."""
        with self._lock:
            return self._reaching[-1].end if self._reaching else 0

    @property
    def spans(self) -> list[Span]:
        """All ranges, by their first offset."""
        with self._lock:
            return list(self._spans)

    def refresh(self, *, soon: bool = False) -> None:
        """List the ranges; `soon`: unless that was done just now."""
        with self._lock:
            now = time.monotonic()
            if soon and now - self._listed < limits.ARCHIVE_LOOK_US / 1e6:
                return
            names = self.store.names(RANGES)
            if len(names) > limits.ARCHIVE_RANGES_MAX:
                raise FormatError(
                    f"{self.where} has {len(names)} ranges and at most {limits.ARCHIVE_RANGES_MAX} are read: begin another "
                    "archive, with larger ones"
                )
            self._hold([Span(*span, name) for name in names if (span := range_of(name)) is not None])
            self._listed = now

    def added(self, manifest: Manifest) -> None:
        """A range has been added by this process."""
        with self._lock:
            name = manifest.name.rpartition("/")[2]
            if all(span.name != name for span in self._spans):
                self._hold([*self._spans, Span(manifest.first, manifest.end, name)])

    def _hold(self, spans: list[Span]) -> None:
        self._spans = sorted(spans, key=lambda span: (span.first, -span.end))
        self._reaching = []
        for span in self._spans:
            if not self._reaching or span.end > self._reaching[-1].end:
                self._reaching.append(span)
        first = self._spans[0].first if self._spans else 0
        self._end = self._missing_at(first)[0]

    def holes(self) -> list[tuple[int, int]]:
        """Ranges [first, end) between others that it has not."""
        with self._lock:
            return [(one.end, other.first) for one, other in pairwise(self._reaching) if one.end < other.first]

    def span_at(self, offset: int) -> Span | None:
        """A range that holds the record, None if there is none."""
        with self._lock:
            at = self._before(offset)
            # What begins at or before it and does not reach further than this one does not reach further than the offset.
            return self._reaching[at] if at >= 0 and self._reaching[at].end > offset else None

    def missing_at(self, offset: int) -> tuple[int, int | None]:
        """The first records [first, end) at or above an offset that it has not; None: it has nothing behind them."""
        with self._lock:
            return self._missing_at(offset)

    def _missing_at(self, offset: int) -> tuple[int, int | None]:
        for at in range(max(0, self._before(offset)), len(self._reaching)):
            span = self._reaching[at]
            if span.first > offset:
                return offset, span.first
            offset = max(offset, span.end)
        return offset, None

    def _before(self, offset: int) -> int:
        """Which of the ranges that reach further than all before them is the last that begins at or before an offset; -1: none."""
        return bisect_right(self._reaching, offset, key=lambda span: span.first) - 1

    def covering(self, start: int, end: int) -> Iterator[tuple[int, int, Span]]:
        """The ranges that together hold [start, end), each with the part [low, high) that is taken of it.

        Raises:
            OffsetOutOfRange: some of it is in none; the message says what.
        """
        position = start
        while position < end:
            span = self.span_at(position)
            if span is None:
                self.refresh(soon=True)
                span = self.span_at(position)
            if span is None:
                raise OffsetOutOfRange(self._missing(position))
            high = min(span.end, end)
            yield position, high, span
            position = high

    def _missing(self, offset: int) -> str:
        spans = self.spans
        after = next((span.first for span in spans if span.first > offset), None)
        if not spans:
            return f"the archive {self.where} holds no record yet"
        if after is None:
            return f"record {offset} is not in the archive {self.where}, which goes to {self.furthest}"
        if offset < spans[0].first:
            return f"record {offset} is not in the archive {self.where}, which begins at {spans[0].first}"
        return f"records {offset} to {after - 1} are missing in the archive {self.where}: `tutti archive verify` says what else is"

    def manifest(self, span: Span) -> Manifest:
        """What a range consists of."""
        with self._lock:
            found = self._manifests.get(span.name)
            if found is not None:
                self._manifests.move_to_end(span.name)
                return found
        path = f"{RANGES}/{span.name}"
        where = f"{self.where}/{path}"
        try:
            data: pa.Buffer = self.store.read(path)
        except FileNotFoundError as error:
            raise damaged(where, "it is gone") from error
        manifest = decode_manifest(data.to_pybytes(), where, span.name)
        if manifest.log != self.log:
            raise WrongDirectory(f"{where} is of log {manifest.log}, and the archive of log {self.log}: it came from elsewhere")
        with self._lock:
            self._manifests[span.name] = manifest
            while len(self._manifests) > limits.ARCHIVE_MANIFESTS_KEPT:
                self._manifests.popitem(last=False)
        return manifest
