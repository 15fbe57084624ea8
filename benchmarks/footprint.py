"""What a gateway costs when nothing happens and when everything does, and how long it takes to start on a large log."""

from __future__ import annotations

import shutil
import tempfile
import threading
import time
from pathlib import Path

from benchmarks.figures import Figure, figure
from benchmarks.fleet import gateway
from benchmarks.ingest import _producer, _send, _send_batches
from benchmarks.machine import MIB

GIB = 1024 * MIB


def memory(directory: Path, rounds: int, quick: bool) -> list[Figure]:
    """PSS of all processes of one gateway: idle, under full load, and a minute after."""
    idle, load, after = [], [], []
    for _ in range(1 if quick else rounds):
        with gateway(directory) as measured:
            time.sleep(5)
            idle.append(measured.memory_mb())
            peak = [0.0]
            stop = threading.Event()

            def watch(measured: object = measured, peak: list[float] = peak, stop: threading.Event = stop) -> None:
                while not stop.wait(0.2):
                    peak[0] = max(peak[0], measured.memory_mb())  # type: ignore[attr-defined]  # bound for the thread above

            watcher = threading.Thread(target=watch)
            watcher.start()
            with _producer(measured) as producer:
                _send(producer, bytes(100), 2_000_000 if quick else 10_000_000)
                _send_batches(producer, 256 * 1024, 1000 if quick else 6000)
            stop.set()
            watcher.join()
            load.append(peak[0])
            time.sleep(60)
            after.append(measured.memory_mb())
    return [
        figure("memory idle", idle, "MB", 150, "less", "PSS, all processes of the gateway"),
        figure("memory under full load", load, "MB", 400, "less", "largest seen, every 0.2 s"),
        figure("memory a minute after", after, "MB", 250, "less"),
    ]


def start(directory: Path, rounds: int, quick: bool) -> list[Figure]:
    """From exec to the ready line on a log of 10 GB that ended with SIGKILL."""
    volume = GIB if quick else 10 * GIB
    own = Path(tempfile.mkdtemp(prefix="tutti-bench-", dir=directory))
    try:
        with gateway(directory, data=own / "data") as measured:
            with _producer(measured) as producer:
                _send_batches(producer, 256 * 1024, volume // (256 * 1024))
            measured.kill()
        blank, times = [], []
        for _ in range(rounds):
            begin = time.perf_counter()
            with gateway(directory):
                blank.append(time.perf_counter() - begin)
            begin = time.perf_counter()
            with gateway(directory, data=own / "data") as measured:
                times.append(time.perf_counter() - begin)
                measured.kill()
    finally:
        shutil.rmtree(own, ignore_errors=True)
    return [
        figure("start on a blank directory", blank, "s", better="less", beside="exec to ready, imports included"),
        figure(f"start on a {volume / 1e9:.1f} GB log", times, "s", 1.0, "less", "exec to ready, imports included"),
    ]
