"""The machine's yardsticks: plain programs on its disk, its loopback and its memory."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import zmq

from benchmarks.figures import Figure, figure, percentile
from benchmarks.pages import Measure
from tutti.data.frames.frame import crc32c

KIB, MIB = 1024, 1024 * 1024
SEGMENT = 128 * MIB


#: What a round of `one_round` finds.
MEASURES = {
    "write + fdatasync, 200 B": Measure("us", "less"),
    "write + fdatasync, 64 KiB": Measure("us", "less"),
    "write + fdatasync, 256 KiB": Measure("us", "less"),
    "write + fdatasync, 1 MiB": Measure("us", "less"),
    "memory copy": Measure("GB/s", "more"),
    "CRC32C": Measure("GB/s", "more"),
    "loopback round trip, TCP": Measure("us", "less"),
    "loopback round trip, bare ZeroMQ": Measure("us", "less"),
    "Python, one turn of an empty loop": Measure("ns", "less"),
}


def one_round(directory: Path) -> dict[str, float]:
    """All of MEASURES once, medians of many; files are made in `directory` and removed. About three seconds."""
    return {
        "write + fdatasync, 200 B": sync_us(directory, 200),
        "write + fdatasync, 64 KiB": sync_us(directory, 64 * KIB),
        "write + fdatasync, 256 KiB": sync_us(directory, 256 * KIB, 200),
        "write + fdatasync, 1 MiB": sync_us(directory, MIB, 100),
        "memory copy": _copy_gbs(),
        "CRC32C": _crc_gbs(),
        "loopback round trip, TCP": round_trip_us(),
        "loopback round trip, bare ZeroMQ": zeromq_us(),
        "Python, one turn of an empty loop": loop_ns(),
    }


def limits(directory: Path, rounds: int) -> list[Figure]:
    """Disk, memory and loopback of this machine."""
    found = [one_round(directory) for _ in range(rounds)]
    return [figure(f"raw: {name}", [one[name] for one in found], unit, better=better) for name, (unit, better) in MEASURES.items()]


@contextmanager
def segment_file(directory: Path, size: int, prepared: bool) -> Iterator[int]:
    """A file of `size` bytes, allocated, and written with zeros when `prepared`; removed at the end."""
    path = directory / f"raw-{os.getpid()}-{time.monotonic_ns()}"
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        os.posix_fallocate(descriptor, 0, size)
        if prepared:
            zeros = bytes(4 * MIB)
            for at in range(0, size, len(zeros)):
                os.pwrite(descriptor, zeros, at)
        os.fsync(descriptor)
        yield descriptor
    finally:
        os.close(descriptor)
        path.unlink()


def sync_us(directory: Path, size: int, count: int = 300) -> float:
    """Median time of one write of `size` bytes and its fdatasync, appended into written zeros, us."""
    data = os.urandom(size)
    with segment_file(directory, max(size * count, MIB), prepared=True) as descriptor:
        times = []
        for number in range(count):
            start = time.perf_counter_ns()
            os.pwrite(descriptor, data, number * size)
            os.fdatasync(descriptor)
            times.append((time.perf_counter_ns() - start) / 1000)
    return percentile(sorted(times), 0.5)


def disk_mbs(directory: Path, volume: int, prepared: bool, chunk: int = MIB) -> float:
    """MB/s of appending `volume` bytes in chunks, each with its fdatasync, into segment files allocated or prepared before."""
    data = os.urandom(chunk)
    elapsed_s = 0.0
    for _ in range(volume // SEGMENT):
        with segment_file(directory, SEGMENT, prepared) as descriptor:
            start = time.perf_counter()
            for at in range(0, SEGMENT, chunk):
                os.pwrite(descriptor, data, at)
                os.fdatasync(descriptor)
            elapsed_s += time.perf_counter() - start
    return volume / elapsed_s / 1e6


def _copy_gbs() -> float:
    source = np.ones(64 * MIB, np.uint8)
    target = np.empty_like(source)
    start = time.perf_counter()
    for _ in range(8):
        np.copyto(target, source)
    return 8 * source.nbytes / (time.perf_counter() - start) / 1e9


def _crc_gbs() -> float:
    data = bytes(16 * MIB)
    start = time.perf_counter()
    for _ in range(16):
        crc32c(data)
    return 16 * len(data) / (time.perf_counter() - start) / 1e9


_ECHO = """
import socket, sys
peer = socket.create_connection(("127.0.0.1", int(sys.argv[1])))
peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
while data := peer.recv(64):
    peer.sendall(data)
"""


def round_trip_us(count: int = 3000) -> float:
    """Median round trip of 64 bytes over TCP between two processes, us."""
    times = []
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = str(listener.getsockname()[1])
        with subprocess.Popen([sys.executable, "-I", "-S", "-c", _ECHO, port]) as echo, listener.accept()[0] as ours:
            ours.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            for _ in range(count):
                start = time.perf_counter_ns()
                ours.sendall(b"x" * 64)
                ours.recv(64)
                times.append((time.perf_counter_ns() - start) / 1000)
            ours.shutdown(socket.SHUT_WR)
            echo.wait(10)
    return percentile(sorted(times), 0.5)


_ZEROMQ_ECHO = """
import sys, zmq
peer = zmq.Context().socket(zmq.DEALER)
peer.connect("tcp://127.0.0.1:" + sys.argv[1])
peer.send(b"")
while data := peer.recv():
    peer.send(data)
"""


def zeromq_us() -> float:
    """Median round trip of 200 bytes over a ROUTER and a DEALER, each in its process, us: what no reply over ZeroMQ beats."""
    times = []
    with zmq.Context() as context, context.socket(zmq.ROUTER) as router:
        port = str(router.bind_to_random_port("tcp://127.0.0.1"))
        with subprocess.Popen([sys.executable, "-c", _ZEROMQ_ECHO, port]) as echo:
            routing, _ = router.recv_multipart()
            for _ in range(3000):
                start = time.perf_counter_ns()
                router.send_multipart([routing, b"x" * 200])
                router.recv_multipart()
                times.append((time.perf_counter_ns() - start) / 1000)
            router.send_multipart([routing, b""])
            echo.wait(10)
    return percentile(sorted(times), 0.5)


def loop_ns(count: int = 3_000_000) -> float:
    """How long one turn of an empty loop takes, ns: how fast this processor is at Python."""
    start = time.perf_counter_ns()
    for _ in range(count):
        pass
    return (time.perf_counter_ns() - start) / count
