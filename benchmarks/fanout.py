"""A yardstick for a group on this machine: bare ZeroMQ from a client to one process, from there to all others, and one fdatasync on
each for all that came meanwhile; the client hears of what is synced everywhere. No headers, no log, no protocol.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import zmq

from benchmarks.figures import percentile

MIB = 1024 * 1024
FLIGHT_BYTES = 4 * MIB  # that the client has under way
UNCOPIED_BYTES = 32_768  # from here on a copy costs more than to go without
WAIT_MS = 60_000
_NODE = """
import os, sys, zmq
from tutti_gateway.node.common import process_memory
process_memory.tune()
path, size, mine, others = sys.argv[1], int(sys.argv[2]), sys.argv[3], sys.argv[4:]
fd = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
os.posix_fallocate(fd, 0, size)
for at in range(0, size, 1 << 22):
    os.pwrite(fd, bytes(1 << 22), at)
os.fsync(fd)
context = zmq.Context()
above = context.socket(zmq.PAIR)
above.set_hwm(0)
above.bind(mine)
below = [context.socket(zmq.PAIR) for _ in others]
poller = zmq.Poller()
poller.register(above, zmq.POLLIN)
for socket, address in zip(below, others):
    socket.set_hwm(0)
    socket.connect(address)
    poller.register(socket, zmq.POLLIN)
above.send(b"ready")
came = told = at = 0
acknowledged = [0] * len(below)
while True:
    ready = dict(poller.poll())
    if above in ready:
        batch, bytes_taken = [], 0
        while bytes_taken < 1 << 20:
            try:
                data = above.recv(zmq.NOBLOCK, copy=False)
            except zmq.Again:
                break
            if not len(data):
                for socket in below:
                    socket.send(b"")
                context.destroy(linger=1000)
                sys.exit()
            for socket in below:
                socket.send(data, copy=False)
            batch.append(data.buffer)
            bytes_taken += len(data)
        if batch:
            if at + bytes_taken > size:
                at = 0
            os.pwritev(fd, batch, at)
            at += bytes_taken
            os.fdatasync(fd)
            came += len(batch)
    for place, socket in enumerate(below):
        if socket in ready:
            while True:
                try:
                    acknowledged[place] = int(socket.recv(zmq.NOBLOCK))
                except ValueError:
                    continue
                except zmq.Again:
                    break
    everywhere = min([came, *acknowledged])
    if everywhere > told:
        told = everywhere
        above.send(b"%d" % told)
"""


class FanOut:
    """Such a group, as its client sees it."""

    def __init__(self, socket: zmq.Socket[bytes]) -> None:
        """Made by `fan_out`."""
        self._socket = socket
        self._sent = self._done = 0

    def mbs(self, size: int, volume: int) -> float:
        """MB/s of messages of `size` bytes, some MiB of them under way."""
        data, window = os.urandom(size), max(1, FLIGHT_BYTES // size)
        start = time.perf_counter()
        for _ in range(volume // size):
            while self._sent - self._done >= window:
                self._hear()
            self._send(data)
        while self._done < self._sent:
            self._hear()
        return volume // size * size / (time.perf_counter() - start) / 1e6

    def one_ms(self, size: int, count: int) -> list[float]:
        """Times of one message after the other, sorted, ms."""
        data, times = os.urandom(size), []
        for _ in range(count):
            start = time.perf_counter_ns()
            self._send(data)
            while self._done < self._sent:
                self._hear()
            times.append((time.perf_counter_ns() - start) / 1e6)
        return sorted(times)

    def _send(self, data: bytes) -> None:
        self._socket.send(data, 0, len(data) < UNCOPIED_BYTES)
        self._sent += 1

    def _hear(self) -> None:
        if not self._socket.poll(WAIT_MS):
            raise SystemExit(f"the bare group said nothing for {WAIT_MS // 1000} s")
        said = self._socket.recv()
        if said != b"ready":
            self._done = int(said)


@contextmanager
def fan_out(directory: Path, members: int, file_bytes: int) -> Iterator[FanOut]:
    """`members` processes, each with a file of written zeros; the first one hears the client and passes everything on."""
    own = directory / f"fanout-{os.getpid()}-{time.monotonic_ns()}"
    own.mkdir()
    processes: list[subprocess.Popen[bytes]] = []
    with zmq.Context() as context, context.socket(zmq.PAIR) as socket:
        socket.set_hwm(0)
        socket.set(zmq.LINGER, 1000)
        addresses = _addresses(context, members)
        try:
            for number in range(members):
                others = addresses[1:] if number == 0 else []
                arguments = [str(own / str(number)), str(file_bytes), addresses[number], *others]
                processes.append(subprocess.Popen([sys.executable, "-c", _NODE, *arguments]))
            socket.connect(addresses[0])
            if not socket.poll(WAIT_MS):
                raise SystemExit("the bare group did not start")
            group = FanOut(socket)
            group.one_ms(512, 50)
            yield group
            socket.send(b"")
            for process in processes:
                process.wait(10)
        finally:
            for process in processes:
                process.kill()
                process.wait()
            for file in own.iterdir():
                file.unlink()
            own.rmdir()


def _addresses(context: zmq.Context[zmq.Socket[bytes]], count: int) -> list[str]:
    sockets = [context.socket(zmq.PAIR) for _ in range(count)]
    ports = [socket.bind_to_random_port("tcp://127.0.0.1") for socket in sockets]
    for socket in sockets:
        socket.close()
    return [f"tcp://127.0.0.1:{port}" for port in ports]


def bare(directory: Path, members: int, volume: int, count: int) -> dict[str, float]:
    """MB/s at 64 KiB and 256 KiB, and p50 and p99 (ms) one at a time."""
    with fan_out(directory, members, volume + 4 * MIB) as group:
        small, large = group.mbs(64 * 1024, volume), group.mbs(256 * 1024, volume)
        times = group.one_ms(512, count)
    return {"64 KiB": small, "256 KiB": large, "p50": percentile(times, 0.5), "p99": percentile(times, 0.99)}
