"""What a full-speed scan of the log costs those who write to it meanwhile, and they it."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from benchmarks.figures import Figure, figure, foreign_load, percentile
from benchmarks.fleet import gateway
from benchmarks.ingest import _paced, _producer, _send
from tutti import Reader

RECORDS = 10_000_000
RATE = 1000


class _Scan:
    """Reads the whole log through Flight again and again, in a thread of this process."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._over = threading.Event()
        self.rows = 0
        self.elapsed_s = 0.0

    @contextmanager
    def running(self) -> Iterator[_Scan]:
        thread = threading.Thread(target=self._run)
        begin = time.perf_counter()
        thread.start()
        try:
            yield self
        finally:
            self._over.set()
            thread.join()
            self.elapsed_s = time.perf_counter() - begin

    def _run(self) -> None:
        while not self._over.is_set():
            with Reader(self._url, topics=["bench"], start=0, columns=["offset", "value"]) as reader:
                for batch in reader:
                    self.rows += batch.num_rows
                    if self._over.is_set():
                        return


def beside_a_scan(directory: Path, rounds: int, quick: bool) -> list[Figure]:
    """Commit latency of 1,000 records a second alone, and beside a scan of everything by one reader."""
    count, seconds = (RECORDS // 10, 3.0) if quick else (RECORDS, 10.0)
    half: dict[bool, list[float]] = {False: [], True: []}
    most: dict[bool, list[float]] = {False: [], True: []}
    speed: list[float] = []
    foreign: list[float] = []
    with gateway(directory) as measured, _producer(measured) as producer:
        _send(producer, bytes(100), count)
        _paced(producer, RATE, 1.0)
        for _ in range(rounds):
            with foreign_load(foreign):
                for scanned in (False, True):
                    if scanned:
                        with _Scan(measured.url).running() as scan:
                            times = sorted(_paced(producer, RATE, seconds))
                        speed.append(scan.rows / scan.elapsed_s / 1e6)
                    else:
                        times = sorted(_paced(producer, RATE, seconds))
                    half[scanned].append(percentile(times, 0.5))
                    most[scanned].append(percentile(times, 0.99))
    state = f"{RATE} records/s for {seconds:.0f} s, log of {count:,} records, foreign CPU {max(foreign):.2f}"
    return [
        figure("commit alone, p50", half[False], "ms", better="less", beside=state),
        figure("commit alone, p99", most[False], "ms", better="less", beside=state),
        figure("commit beside a full scan, p50", half[True], "ms", better="less", beside=state),
        figure("commit beside a full scan, p99", most[True], "ms", better="less", beside=state),
        figure("the scan beside commits", speed, "M rows/s", beside="one reader through Flight, columns offset and value"),
    ]
