"""Tests of the memory budget: a batch is created only if the largest batch fits, waiters are served in order, and
each wait ends.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import pytest

from tutti_gateway.core import limits
from tutti_gateway.reads.common.memory_budget import MemoryBudget
from tutti_gateway.reads.protocol.flight_errors import ReadError

PLACES = limits.READ_HELD_BYTES_MAX // limits.READ_MAKING_BYTES


def test_concurrent_batches_never_exceed_the_budget() -> None:
    room, most, now, lock, full = MemoryBudget(lambda: 0), 0, 0, threading.Lock(), threading.Event()

    def make() -> None:
        nonlocal most, now
        with room.reserve_batch():
            with lock:
                now += 1
                most = max(most, now)
                if now == PLACES:
                    full.set()
            full.wait(20)
            with lock:
                now -= 1

    makers = [threading.Thread(target=make) for _ in range(3 * PLACES)]
    for maker in makers:
        maker.start()
    for maker in makers:
        maker.join(20)
    assert most == PLACES
    assert now == 0


def test_buffered_batches_reduce_the_budget_and_waiters_get_busy_in_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "BUSY_WAIT_US_MAX", 200_000)
    held = limits.READ_HELD_BYTES_MAX - limits.READ_MAKING_BYTES
    room = MemoryBudget(lambda: held)
    with room.reserve_batch(), pytest.raises(ReadError, match=f"hold {held} bytes") as caught, room.reserve_batch():
        pass
    assert (caught.value.code, room.refused) == ("busy", 1)
    with pytest.raises(ZeroDivisionError), room.reserve_batch():  # a batch that fails gives its place back
        _ = 1 // 0
    held += 1
    began = time.monotonic()
    with pytest.raises(ReadError), room.reserve_batch():
        pass
    assert 0.15 < time.monotonic() - began < 5


def test_freed_memory_is_used() -> None:
    held = limits.READ_HELD_BYTES_MAX
    room = MemoryBudget(lambda: held)

    def free() -> None:
        nonlocal held
        held = 0

    threading.Timer(0.1, free).start()
    with room.reserve_batch():
        assert held == 0


def test_waiters_are_served_in_order() -> None:
    room, served, entered = MemoryBudget(lambda: 0), [], []
    gates = [threading.Event() for _ in range(PLACES)]

    def hold(gate: threading.Event) -> None:
        with room.reserve_batch():
            entered.append(gate)
            gate.wait(20)

    def queue(number: int) -> None:
        with room.reserve_batch():
            served.append(number)
            time.sleep(0.001)

    holders = [threading.Thread(target=hold, args=(gate,)) for gate in gates]
    for holder in holders:
        holder.start()
    _until(lambda: len(entered) == PLACES)
    waiting = [threading.Thread(target=queue, args=(number,)) for number in range(20)]
    for number, one in enumerate(waiting):
        one.start()
        _until(lambda number=number: len(room._waiters) == number + 1)  # type: ignore[misc]  # bound at once
    gates[0].set()
    for one in waiting:
        one.join(20)
    assert served == list(range(20))
    for gate in gates:
        gate.set()
    for holder in holders:
        holder.join(20)


def test_many_callers_with_slow_batches_all_get_their_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "BUSY_WAIT_US_MAX", 20_000_000)  # a round of all takes 0.35 s
    room, turns = MemoryBudget(lambda: 0), [0] * 64
    refused: list[ReadError] = []

    def scan(number: int) -> None:
        try:
            while min(turns) < 5 and not refused:  # who is passed over waits as long as the others go on
                with room.reserve_batch():
                    time.sleep(0.05)
                    turns[number] += 1
        except ReadError as fault:
            refused.append(fault)

    scans = [threading.Thread(target=scan, args=(number,), daemon=True) for number in range(len(turns))]
    for one in scans:
        one.start()
    for one in scans:
        one.join(60)
    assert (refused, room.refused) == ([], 0)
    assert min(turns) >= 5


def test_a_refused_waiter_wakes_the_next_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "BUSY_WAIT_US_MAX", 1_000_000)
    held, got = limits.READ_HELD_BYTES_MAX, []
    room = MemoryBudget(lambda: held)

    def take(name: str) -> None:
        try:
            with room.reserve_batch():
                got.append(name)
        except ReadError:
            got.append(f"{name} refused")

    first = threading.Thread(target=take, args=("first",), daemon=True)
    first.start()
    _until(lambda: len(room._waiters) == 1)
    monkeypatch.setattr(limits, "BUSY_WAIT_US_MAX", 600_000_000)  # it does not look by itself while this test waits
    second = threading.Thread(target=take, args=("second",), daemon=True)
    second.start()
    first.join(20)
    held = 0
    second.join(20)
    assert got == ["first refused", "second"]


def _until(happened: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 10
    while not happened():
        assert time.monotonic() < deadline
        time.sleep(0.001)
