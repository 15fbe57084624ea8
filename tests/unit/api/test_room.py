"""Proves that batches are made only while there is room for the largest, that who waits gets its turn, and that waiting ends."""

from __future__ import annotations

import threading
import time

import pytest

from gateway.api.faults import Fault
from gateway.api.room import Room
from gateway.core import limits

PLACES = limits.READ_HELD_BYTES_MAX // limits.READ_MAKING_BYTES


def test_so_many_are_made_at_a_time_that_they_cannot_take_more_than_there_is() -> None:
    room, most, now, lock = Room(lambda: 0), 0, 0, threading.Lock()

    def make() -> None:
        nonlocal most, now
        with room.for_a_batch():
            with lock:
                now += 1
                most = max(most, now)
            time.sleep(0.05)
            with lock:
                now -= 1

    makers = [threading.Thread(target=make) for _ in range(3 * PLACES)]
    for maker in makers:
        maker.start()
    for maker in makers:
        maker.join(20)
    assert 1 < most <= PLACES
    assert now == 0


def test_what_is_held_leaves_less_and_who_waits_is_told_in_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "BUSY_WAIT_US_MAX", 200_000)
    held = limits.READ_HELD_BYTES_MAX - limits.READ_MAKING_BYTES
    room = Room(lambda: held)
    with room.for_a_batch(), pytest.raises(Fault, match=f"hold {held} bytes") as caught, room.for_a_batch():
        pass
    assert caught.value.code == "busy"
    with pytest.raises(ZeroDivisionError), room.for_a_batch():  # a batch that fails gives its place back
        _ = 1 // 0
    held += 1
    began = time.monotonic()
    with pytest.raises(Fault), room.for_a_batch():
        pass
    assert 0.15 < time.monotonic() - began < 5


def test_room_that_becomes_free_is_taken() -> None:
    held = limits.READ_HELD_BYTES_MAX
    room = Room(lambda: held)

    def free() -> None:
        nonlocal held
        held = 0

    threading.Timer(0.1, free).start()
    with room.for_a_batch():
        assert held == 0
