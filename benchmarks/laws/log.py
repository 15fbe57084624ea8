"""How large a log is, and how long it is written to without a pause."""

from __future__ import annotations

import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from statistics import median

from benchmarks.fleet import Measured, gateway
from benchmarks.ingest import _send_batches
from benchmarks.laws.law import FIRST, LAST, Asked, Bench, Held, Law
from benchmarks.laws.sizes import group
from benchmarks.machine import KIB, SEGMENT
from benchmarks.pages import Measure
from tutti import Producer, Reader

GB = 1_000_000_000
_SIZES_GB = (1.0, 2.0, 5.0, 10.0, 20.0, 50.0)
_BATCH = 256 * KIB
_SEEKS = 40
_GROUP = 3
_RAW = """
import sys
from pathlib import Path
from benchmarks.machine import KIB, disk_mbs
print(disk_mbs(Path(sys.argv[1]), int(sys.argv[2]), prepared=False, chunk=256 * KIB))
"""


def sizes_gb(most: float) -> list[float]:
    """Where a log that grows to `most` GB is looked at."""
    steps = [size for size in _SIZES_GB if size < most]
    return [*(steps or [most / 4, most / 2]), most]


def _log(bench: Bench) -> None:
    own = Path(tempfile.mkdtemp(prefix="log-", dir=bench.directory))
    try:
        filled = 0.0
        since: datetime | None = None
        for size in sizes_gb(bench.asked.log_gb):
            place = f"{size:g} GB"
            with gateway(bench.directory, data=own) as measured:
                with Producer(measured.url) as producer:
                    producer.send("bench", b"up").result(60)
                    since = since or datetime.now(UTC)
                    _send_batches(producer, _BATCH, int((size - filled) * GB) // _BATCH)
                filled = size
                _seeks(bench, place, measured, since)
            for _ in range(1 if bench.asked.quick else 3):
                bench.add("start after a stop", place, _start(bench, own, killed=True))
                bench.add("start after SIGKILL", place, _start(bench, own, killed=False))
    finally:
        shutil.rmtree(own, ignore_errors=True)


def _start(bench: Bench, data: Path, *, killed: bool) -> float:
    """Seconds from exec to the ready line; it is killed right behind a record afterwards, or stopped."""
    begin = time.perf_counter()
    with gateway(bench.directory, data=data) as measured:
        took_s = time.perf_counter() - begin
        if killed:
            with Producer(measured.url) as producer:
                _send_batches(producer, _BATCH, 20)
            measured.kill()
    return took_s


def _seeks(bench: Bench, place: str, measured: Measured, since: datetime) -> None:
    with Reader(measured.url, start="latest") as reader:
        end = int(reader.position)
    took_s = (datetime.now(UTC) - since).total_seconds()
    bench.add("seek by offset", place, _seek_ms(measured.url, lambda: random.randrange(end)))
    bench.add("seek by time", place, _seek_ms(measured.url, lambda: since + timedelta(seconds=random.random() * took_s * 0.9)))


def _seek_ms(url: str, where: Callable[[], int | datetime]) -> float:
    """From the making of a reader to its first batch, p50."""
    times = []
    for _ in range(_SEEKS):
        begin = time.perf_counter()
        with Reader(url, start=where(), columns=["offset"]) as reader:
            next(iter(reader))
            times.append((time.perf_counter() - begin) * 1e3)
    return median(times)


def _raw(directory: Path, volume: int) -> float:
    """MB/s that each of three processes has that append at once, each to segments of its own: the slowest."""
    command = [sys.executable, "-P", "-c", _RAW, str(directory), str(volume)]
    processes = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(_GROUP)]
    said = [process.communicate()[0] for process in processes]
    if any(process.returncode for process in processes):
        raise SystemExit("the raw disk could not be measured; what it said of that stands above")
    return min(float(one) for one in said)


def _sustained(bench: Bench) -> None:
    whole = max(1, round(bench.asked.sustained_gb))
    places = [f"GB {number}" for number in range(1, whole + 1)]
    half = places[: (whole + 1) // 2]
    volume = -(-GB // SEGMENT) * SEGMENT
    for place in half:
        bench.add("raw disk", place, _raw(bench.directory, volume))
    with group(bench, _GROUP, 0) as (coordinator, _), Producer(coordinator.url) as producer:
        producer.send("bench", b"up").result(60)
        for place in places:
            bench.add("three gateways", place, _send_batches(producer, _BATCH, volume // _BATCH))
    for place in places[len(half) :]:
        bench.add("raw disk", place, _raw(bench.directory, volume))
    raw = median(rounds[-1] for rounds in bench.found["raw disk"].values())
    for place in places:
        bench.add("share of the raw disk", place, 100 * bench.found["three gateways"][place][-1] / raw)


def _log_bytes(asked: Asked) -> float:
    return asked.log_gb * GB * 1.05 + 5 * SEGMENT


def _sustained_bytes(asked: Asked) -> float:
    return _GROUP * (asked.sustained_gb * GB * 1.1 + 5 * SEGMENT)


LAWS = {
    "log": Law(
        "Size of the log",
        "log",
        {
            "start after a stop": Measure("s", "less"),
            "start after SIGKILL": Measure("s", "less"),
            "seek by offset": Measure("ms", "less"),
            "seek by time": Measure("ms", "less"),
        },
        "A start reads the newest snapshot and the frames after it, which are in the newest segments, whatever the"
        " size of the log. A seek by offset uses bisection. A seek by time compares one number for each segment, its"
        " largest time, which is in memory and takes a microsecond. If the log is larger than memory, a seek waits for"
        " the disk, which reads only its first frames. The measurement has one gateway. A start counts from exec to"
        " ready, imports included; a seek counts from a new reader to its first batch, its connection included.",
        _log,
        True,
        _log_bytes,
        tuple(
            Held(measure, LAST, 1.5, than=FIRST)
            for measure in ("start after a stop", "start after SIGKILL", "seek by offset", "seek by time")
        ),
    ),
    "sustained": Law(
        "Written without a pause",
        "written",
        {
            "three gateways": Measure("MB/s", "more"),
            "raw disk": Measure("MB/s", "more"),
            "share of the raw disk": Measure("%", "more"),
        },
        "Idle gateways prepare segments in advance, and a sustained load soon uses these up. From then on each byte"
        " goes into a fresh segment, and three gateways share one disk. The raw disk is three concurrent processes"
        " that append 256 KiB and sync, into fresh segments. Half of it is measured before and half after, and a share"
        " refers to the median of all. Gateways sometimes exceed the raw disk: they prepare the next segment while"
        " they write this one, and one sync covers several messages.",
        _sustained,
        True,
        _sustained_bytes,
    ),
}
