"""Tests of the concurrency limit: slots are bounded, each slot returns however its holder ends, and a caller gets "busy" after its
wait.
"""

import threading
import time

import pytest

from tutti_gateway.reads.common.concurrency import ConcurrencyLimit
from tutti_gateway.reads.protocol.flight_errors import ReadError


def test_a_full_limit_answers_busy() -> None:
    slots = ConcurrencyLimit("streams", 2)
    held = [slots.acquire(), slots.acquire()]
    with pytest.raises(ReadError, match="limit of 2 streams") as caught:
        slots.acquire()
    assert (caught.value.code, slots.refused, slots.used) == ("busy", 1, 2)
    held[0].release()
    held[0].release()  # once is enough, twice does no harm
    assert slots.used == 1
    assert slots.acquire() is not None


def test_a_dropped_lease_returns_its_slot() -> None:
    slots = ConcurrencyLimit("streams", 1)
    lease = slots.acquire()
    del lease
    assert slots.used == 0


def test_a_waiter_gets_the_next_slot() -> None:
    slots = ConcurrencyLimit("streams", 1, wait_us=20_000_000)
    lease = slots.acquire()
    got = threading.Event()

    def wait() -> None:
        with_place = slots.acquire()
        got.set()
        with_place.release()

    waiter = threading.Thread(target=wait)
    waiter.start()
    assert not got.is_set()
    lease.release()
    waiter.join(10)
    assert got.is_set()
    assert slots.used == 0


def refused_after(slots: ConcurrencyLimit) -> float:
    """How many seconds a caller waits that goes away after half a second."""
    began = time.monotonic()
    with pytest.raises(ReadError):
        slots.acquire(lambda: time.monotonic() - began > 0.5)
    return time.monotonic() - began


def test_waiters_are_bounded_too() -> None:
    slots = ConcurrencyLimit("streams", 1, wait_us=20_000_000)
    lease = slots.acquire()
    waiter = threading.Thread(target=lambda: slots.acquire().release())
    waiter.start()
    deadline = time.monotonic() + 10
    while refused_after(slots) > 0.2:  # until there is no place to wait either
        assert time.monotonic() < deadline
    lease.release()
    waiter.join(10)
    assert slots.used == 0


def test_a_disconnected_caller_does_not_wait() -> None:
    slots = ConcurrencyLimit("streams", 1, wait_us=20_000_000)
    lease = slots.acquire()
    began = time.monotonic()
    with pytest.raises(ReadError):
        slots.acquire(lambda: True)
    assert time.monotonic() - began < 5
    lease.release()
