"""History of a gateway for the console: values over the last minutes and the last day, and changes of state and view.

A thread samples the gateway's status once a second. Each point of a series holds the rates between two samples. One series has a
point each second, the other one a point each minute. Both series and the list of changes are bounded and in memory, so a restart of
the reads process loses them.
"""

from __future__ import annotations

import threading
import time
from array import array
from collections import deque
from collections.abc import Callable, Mapping
from math import isnan
from typing import Any, NamedTuple

import msgspec

from tutti_gateway.core import limits

US = 1_000_000
_UNKNOWN = "unknown"
Status = Mapping[str, Any]


class Rate(NamedTuple):
    """A counter of the status, named by its dotted path, that the history shows as a rate per second."""

    name: str
    path: str


class Latency(NamedTuple):
    """A histogram of the status, named by its dotted path, of which the history shows one quantile, us."""

    name: str
    path: str
    quantile: float


class Level(NamedTuple):
    """A value of the status, named by its dotted path, that the history shows unchanged."""

    name: str
    path: str


RATES = (
    Rate("committed_records", "committed.records"),
    Rate("unordered_records", "unordered.records"),
    Rate("ingest_records", "ingest.records"),
    Rate("ingest_bytes", "ingest.bytes"),
    Rate("disk_bytes", "disk.bytes"),
    Rate("syncs", "disk.syncs"),
    Rate("repaired_frames", "repair.repaired_frames"),
    Rate("duplicates", "duplicates"),
    Rate("read_records", "reads.records"),
    Rate("read_bytes", "reads.bytes"),
)
LATENCIES = (
    Latency("commit_p50_us", "commit_us", 0.5),
    Latency("commit_p99_us", "commit_us", 0.99),
    Latency("vote_p99_us", "vote_us", 0.99),
    Latency("decide_p99_us", "decide_us", 0.99),
    Latency("sync_p99_us", "disk.sync_us", 0.99),
)
LEVELS = (
    Level("frontier", "frontier"),
    Level("undecided_frames", "undecided.frames"),
    Level("undecided_bytes", "undecided.bytes"),
    Level("sessions", "sessions"),
    Level("disk_free_bytes", "disk.free_bytes"),
    Level("resident_bytes", "memory.resident_bytes"),
)
#: The fields of a point, in order: the end of its interval (us since 1970), the length of the interval (us), then the values.
FIELDS = ("time_us", "span_us", *(figure.name for figure in (*RATES, *LATENCIES, *LEVELS)), "lag_max")
_NAN = float("nan")


class Change(msgspec.Struct, frozen=True):
    """A change of the gateway's state or view. The first entry of the list is not a change, but the state at the first sample."""

    time_us: int
    state: str
    reason: str
    view: int
    view_text: str
    coordinator: str
    members: tuple[str, ...]
    silent: tuple[str, ...]
    pid: int


class _Sample(NamedTuple):
    """One sample of the status. `status` is None if the gateway did not answer."""

    time_us: int
    mono_us: int
    status: Status | None


class _Series:
    """A time series with one point for each interval of `every_us`, which keeps only the newest `most` points."""

    def __init__(self, every_us: int, most: int) -> None:
        self._every_us = every_us
        self._last: _Sample | None = None
        # A point is an array of 24 doubles instead of a dict, so both series together take less than 1 MB.
        self.points: deque[array[float]] = deque(maxlen=most)

    def add(self, sample: _Sample) -> None:
        last = self._last
        if last is None:
            self._last = sample
        elif sample.mono_us - last.mono_us >= self._every_us:
            self._last = sample
            self.points.append(point(last, sample))


class History:
    """Samples the status once a second, in a separate thread. Thread-safe."""

    def __init__(self, status: Callable[[], Status | None], reads: Callable[[], Mapping[str, int]]) -> None:
        """Begin without samples.

        Args:
            status: returns the gateway's status after a wait of up to a second, or None if the gateway does not answer.
            reads: returns the records and bytes that this process has served.
        """
        self._status = status
        self._reads = reads
        self._lock = threading.Lock()
        # Points may be slightly closer than the interval, so that a slightly early sample still adds a point.
        self._seconds = _Series(US * 9 // 10, limits.HISTORY_SECONDS)
        self._minutes = _Series(60 * US - US // 2, limits.HISTORY_MINUTES)
        self._changes: deque[Change] = deque(maxlen=limits.HISTORY_EVENTS_MAX)
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="history", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def stop(self) -> None:
        """Stop sampling."""
        self._stopping.set()

    def _run(self) -> None:
        while not self._stopping.wait(1.0):
            self.sample(time.time_ns() // 1000, time.monotonic_ns() // 1000)

    def sample(self, time_us: int, mono_us: int) -> None:
        """Take one sample."""
        # A hanging gateway delays the status by a second, so the status is requested before the lock that pages need is taken.
        status = self._status()
        sample = _Sample(time_us, mono_us, None if status is None else {**status, "reads": self._reads()})
        with self._lock:
            self._seconds.add(sample)
            self._minutes.add(sample)
            change = _change(sample)
            if not self._changes or _differ(self._changes[-1], change):
                self._changes.append(change)

    def recent(self, since_us: int = 0, seconds: int = limits.HISTORY_SECONDS) -> dict[str, object]:
        """Return the points of one second that end after `since_us`, at most the newest `seconds`, and later changes."""
        with self._lock:
            # The slice `[-0:]` returns the whole list, so `seconds=0` needs a case of its own.
            found = [row for row in list(self._seconds.points)[-seconds:] if row[0] > since_us] if seconds else []
            changes = [change for change in self._changes if change.time_us > since_us]
        return {"fields": FIELDS, "points": [_json_point(row) for row in found], "changes": changes}

    def minutes(self) -> dict[str, object]:
        """Return all points of one minute."""
        with self._lock:
            found = list(self._minutes.points)
        return {"fields": FIELDS, "points": [_json_point(row) for row in found]}


def point(before: _Sample, now: _Sample) -> array[float]:
    """Return the point for the interval between two samples, with the fields of `FIELDS`.

    A field is NaN if the gateway did not answer, or if a restart of the gateway reset its counters.
    """
    # Intervals use the monotonic clock, because a step of the wall clock would make rates wrong or negative.
    span_us = now.mono_us - before.mono_us
    old, new = before.status, now.status
    made = array("d", [now.time_us, span_us])
    counts = old is not None and new is not None and old.get("started_us") == new.get("started_us")
    for rate in RATES:
        made.append((find(new, rate.path, 0) - find(old, rate.path, 0)) * US / span_us if counts else _NAN)
    for latency in LATENCIES:
        made.append(quantile(find(old, latency.path, None), find(new, latency.path, None), latency.quantile) if counts else _NAN)
    for level in LEVELS:
        made.append(find(new, level.path, _NAN) if new is not None else _NAN)
    made.append(max((new.get("lag") or {}).values(), default=0) if new is not None else _NAN)
    return made


def quantile(before: Status | None, now: Status | None, part: float) -> float:
    """Return a quantile of the values that a histogram counted between two samples; NaN if there are none.

    The estimate assumes that values are evenly spread within a bucket, and that the last bucket ends at twice the highest bound.
    """
    if not before or not now:
        return _NAN
    # A histogram counts since the start of the gateway, so the difference has only the values between the two samples.
    counts = [new - old for old, new in zip(before["counts"], now["counts"], strict=True)]
    wanted = part * sum(counts)
    if wanted <= 0:
        return _NAN
    low = 0.0
    for bound, count in zip([*now["bounds"], 2 * now["bounds"][-1]], counts, strict=True):
        if count and count >= wanted:
            return float(low + (bound - low) * wanted / count)
        wanted -= count
        low = bound
    return low


def find(status: Status | None, path: str, absent: Any) -> Any:
    """Return the value at the dotted keys of `path`, or `absent` if there is none."""
    value: Any = status
    for key in path.split("."):
        value = value.get(key) if isinstance(value, Mapping) else None
    return absent if value is None else value


def _change(sample: _Sample) -> Change:
    status = sample.status or {}
    view = status.get("view") or {}
    return Change(
        time_us=sample.time_us,
        state=str(status.get("state", _UNKNOWN)),
        reason=str(status.get("reason", ""))[: limits.HISTORY_TEXT_CHARACTERS_MAX],
        view=int(view.get("id", 0)),
        view_text=str(view.get("text", "")),
        coordinator=str(view.get("coordinator", "")),
        members=tuple(view.get("members", ())),
        silent=tuple(status.get("silent", ())),
        pid=int(status.get("pid", 0)),
    )


def _differ(one: Change, other: Change) -> bool:
    """True if two changes differ in more than their time and the text of their reason."""
    plain = msgspec.structs.replace
    return plain(one, time_us=0, reason=str(bool(one.reason))) != plain(other, time_us=0, reason=str(bool(other.reason)))


def _json_point(row: array[float]) -> list[float | int | None]:
    """Return a point as JSON values: NaN becomes None, and whole numbers become integers."""
    return [None if isnan(value) else int(value) if value == int(value) else round(value, 1) for value in row]
