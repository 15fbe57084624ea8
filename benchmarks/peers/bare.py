"""The machine itself: bare ZeroMQ, or sockets, to three processes with a sync on each, and what disk, memory and loopback take."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from benchmarks import connections
from benchmarks.fanout import FanOut, fan_out
from benchmarks.figures import percentile
from benchmarks.load.generator import lacking
from benchmarks.machine import KIB, MIB, one_round
from benchmarks.peers.side import MACHINE
from benchmarks.peers.work import FLIGHT, PACED_RATE, Client, Latency, Running

_MEMBERS = 3
_RECORD_BYTES = 200  # of 100 with what says what it is


class _Bare(Running):
    def __init__(self, group: FanOut, directory: Path) -> None:
        self._group, self._directory = group, directory

    def rate(self, size: int, count: int) -> float | None:
        """In messages of 256 KiB, as a client would pack records of 1 KB; of small ones packing is the limit, not the machine."""
        return self._group.mbs(256 * KIB, max(256 * KIB, size * count)) * 1e6 / size if size >= 1000 else None

    def batches(self, size: int, volume: int) -> float:
        return self._group.mbs(size, volume)

    def one_at_a_time(self, count: int) -> Latency:
        times = self._group.one_ms(_RECORD_BYTES, count)
        return Latency(percentile(times, 0.5), percentile(times, 0.99))

    def small_each(self, count: int) -> float:
        return connections.rate(self._directory, FLIGHT, _RECORD_BYTES, count)

    def compiled(self) -> Client | None:
        """Bare sockets under the load generator."""
        if lacking():
            return None

        def latency(count: int, rate: float = 0.0) -> Latency:
            load = connections.load(self._directory, 1, _RECORD_BYTES, count, rate)
            return Latency(load.at_ms(0.5), load.at_ms(0.99))

        return Client(
            lambda count: connections.load(self._directory, FLIGHT, _RECORD_BYTES, count).rate,
            latency,
            lambda seconds: latency(int(seconds * PACED_RATE), PACED_RATE),
        )

    def python(self) -> Client:
        """Bare sockets for many connections, bare ZeroMQ for one."""
        return Client(self.small_each, self.one_at_a_time)

    def members(self) -> Sequence[int]:
        """Return no process, because the comparison excludes the CPU time of the bare servers."""
        return ()

    def memory_mb(self) -> None:
        return None

    def limits(self) -> dict[str, float]:
        return one_round(self._directory)


class Machine:
    """A yardstick: no log, no order, no protocol."""

    name = MACHINE
    promise = "bare messages, synced on all three: a yardstick"

    def __init__(self, volume: int) -> None:
        """`volume`: bytes of a load."""
        self._volume = volume

    def lacking(self) -> str:
        """Nothing."""
        return ""

    @contextmanager
    def running(self, directory: Path) -> Iterator[Running]:
        """Start the processes."""
        with fan_out(directory, _MEMBERS, self._volume + 4 * MIB) as group:
            yield _Bare(group, directory)
