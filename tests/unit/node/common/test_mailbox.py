"""Tests of the mailbox: items are never lost or reordered, a sleeping receiver wakes, and an awake one costs no system call."""

import os
import threading
import time

import pytest

from tutti_gateway.core import limits
from tutti_gateway.node.common.mailbox import Mailbox


def test_items_come_out_in_order_and_within_the_bound() -> None:
    box: Mailbox[int] = Mailbox()
    for number in range(5):
        box.put(number)
    assert box.drain(3) == [0, 1, 2]
    assert box.drain(10) == [3, 4]
    assert box.drain(10) == []
    box.close()


def test_a_put_wakes_the_sleeper_long_before_its_time_is_over() -> None:
    box: Mailbox[str] = Mailbox()
    asleep = threading.Event()
    woken: list[float] = []

    def sleeper() -> None:
        began = time.monotonic()
        asleep.set()
        while not len(box):
            box.wait(10_000)
        woken.append(time.monotonic() - began)

    thread = threading.Thread(target=sleeper)
    thread.start()
    asleep.wait(5)
    box.put("wake")
    thread.join(5)
    assert woken
    assert woken[0] < 5
    box.close()


def test_the_receiver_does_not_sleep_if_an_item_came_just_before() -> None:
    box: Mailbox[int] = Mailbox()
    box.put(1)
    assert box.begin_sleep() is False
    box.drain(1)
    assert box.begin_sleep() is True
    box.end_sleep(signalled=False)
    box.close()


def test_an_awake_receiver_is_not_signalled() -> None:
    box: Mailbox[int] = Mailbox()
    box.put(1)
    assert not signalled(box)
    box.close()


def test_items_that_may_wait_for_the_end_of_a_nap_do_not_wake_and_all_others_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "MAILBOX_LAZY_ITEMS_MAX", 3)
    box: Mailbox[int] = Mailbox()
    for nap, put, woken in (
        (True, [box.put_lazily] * 2, False),
        (True, [box.put_lazily] * 3, True),
        (True, [box.put], True),
        (False, [box.put_lazily], True),
        (False, [box.put_quietly], False),
        (True, [lambda _item: box.rouse(from_nap=True)], True),
        (True, [lambda _item: box.rouse(from_nap=False)], False),
        (False, [lambda _item: box.rouse(from_nap=False)], True),
    ):
        box.wait(0, nap=nap)
        assert box.begin_sleep() is True
        for one in put:
            one(1)
        assert signalled(box) is woken
        box.end_sleep(signalled=False)
        box.drain(10)
    box.close()


def test_a_receiver_sleeps_for_its_time_unless_an_item_is_there() -> None:
    box: Mailbox[int] = Mailbox()
    assert box.wait(1, nap=True) is True
    box.put_lazily(1)
    assert box.wait(10_000, nap=True) is False
    box.drain(1)
    box.wake()
    assert box.wait(10_000) is False
    box.close()


def signalled(box: Mailbox[int]) -> bool:
    try:
        os.eventfd_read(box.fd)
    except BlockingIOError:
        return False
    return True


def test_nothing_is_lost_between_two_threads() -> None:
    box: Mailbox[int] = Mailbox()
    count = 20_000
    got: list[int] = []

    def take() -> None:
        while len(got) < count:
            box.wait(100)
            got.extend(box.drain(64))

    thread = threading.Thread(target=take)
    thread.start()
    for number in range(count):
        box.put(number)
    thread.join(30)
    assert got == list(range(count))
    box.close()
