"""The work that all systems do, and what one that runs has to offer for it. What it cannot do, or has no way for, it leaves out."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple, Protocol

from benchmarks.figures import percentile, proportional_memory_bytes

FLIGHT = 200  # records under way of as many small producers
PACED_RATE = 1000
GAP_RATE = 200
GAP_BEFORE_S, GAP_AFTER_S = 3.0, 25.0
GAP_SEEN_S = 5.0  # of receipts after the kill without another gap: it is over
MS_PER_NS = 1e-6


class Latency(NamedTuple):
    """How long receipts took, ms."""

    p50: float
    p99: float


class Client(NamedTuple):
    """The functions of one kind of client for records of 100 B. Each returns a figure; None: the client has no such figure.

    Attributes:
        each: (records) records a second over 200 connections, with one record in flight on each.
        one: (records) the latency of one record after the other.
        paced: (seconds) the latency at 1,000 records a second.
    """

    each: Callable[[int], float]
    one: Callable[[int], Latency]
    paced: Callable[[float], Latency] | None = None


class Running:
    """A system that runs, with its topic or stream made. What a system has no way for is None."""

    def rate(self, size: int, count: int) -> float | None:
        """Records a second that `count` records of `size` bytes take until all have their receipts."""
        return None

    def one_at_a_time(self, count: int) -> Latency | None:
        """Each record of 100 B waits for the receipt of the one before."""
        return None

    def elsewhere(self, count: int) -> Latency | None:
        """The same through a member that does not order."""
        return None

    def paced(self, seconds: float) -> Latency | None:
        """1,000 records of 100 B a second."""
        return None

    def batches(self, size: int, volume: int) -> float | None:
        """MB/s that `volume` bytes take in messages, or batches that the client makes itself, of `size` bytes."""
        return None

    def small(self, count: int) -> float | None:
        """Records of 100 B a second, 200 of them under way, over one connection."""
        return None

    def small_each(self, count: int) -> float | None:
        """Records of 100 B a second by 200 producers, one under way each, each with its connection."""
        return None

    def compiled(self) -> Client | None:
        """A client in a compiled language. It uses little CPU time, so its figures show the servers."""
        return None

    def python(self) -> Client | None:
        """The Python client of the system."""
        return None

    def gap(self) -> float | None:
        """The longest time without a receipt (s) when who orders is killed; it ends the system's use."""
        return None

    def members(self) -> Sequence[int]:
        """The process of each member."""
        raise NotImplementedError

    def limits(self) -> dict[str, float]:
        """What the machine can do, measure by measure; nothing of a system that only runs on it."""
        return {}

    def memory_mb(self) -> float | None:
        """PSS of the largest member, MB."""
        return max(proportional_memory_bytes([pid]) for pid in self.members()) / 1e6


class System(Protocol):
    """A system to measure.

    Attributes:
        name: how it is called in tables.
        promise: what a receipt says of a record.
    """

    name: str
    promise: str

    def lacking(self) -> str:
        """What is missing to run it here; empty: nothing."""

    def running(self, directory: Path) -> AbstractContextManager[Running]:
        """Start it with everything below `directory`; it ends with the block, and its files go."""


def latency(times_ns: Sequence[int]) -> Latency:
    """Of single times."""
    found = sorted(times_ns)
    return Latency(percentile(found, 0.5) * MS_PER_NS, percentile(found, 0.99) * MS_PER_NS)


def gap_s(send: Callable[[Callable[[], None]], None], serve: Callable[[float], object], kill: Callable[[], None]) -> float:
    """The longest time between two receipts while one is killed, s.

    Args:
        send: sends a record; calls what it is given when the receipt is there, from whichever thread. It may wait.
        serve: lets the client work for so many seconds.
        kill: kills who orders.

    Returns:
        The time; from the last receipt to the end where none came after the kill.
    """
    told: list[int] = []
    killed: list[int] = []

    def strike() -> None:
        killed.append(time.monotonic_ns())
        kill()

    timer = threading.Timer(GAP_BEFORE_S, strike)
    begin = time.monotonic()
    end = begin + GAP_BEFORE_S + GAP_AFTER_S
    timer.start()
    number = 0
    while (now := time.monotonic()) < end:
        due = begin + number / GAP_RATE
        if due > now:
            serve(due - now)
            continue
        number += 1
        send(lambda: told.append(time.monotonic_ns()))
        if killed and len(told) > 1 and told[-1] - killed[0] > GAP_SEEN_S * 1e9 and told[-1] - told[-2] < 1e9:
            break  # it has been going on for a while
    timer.join()
    seen = sorted([*told, time.monotonic_ns()])
    return max(after - before for before, after in pairwise(seen)) / 1e9
