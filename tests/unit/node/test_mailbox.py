"""Proves that nothing put into a mailbox is lost or reordered, that sleepers wake, and that an awake taker costs no system call."""

import os
import threading
import time

from gateway.node.mailbox import Mailbox


def test_items_come_out_in_order_and_within_the_bound() -> None:
    box: Mailbox[int] = Mailbox()
    for number in range(5):
        box.put(number)
    assert box.take(3) == [0, 1, 2]
    assert box.take(10) == [3, 4]
    assert box.take(10) == []
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


def test_the_taker_does_not_sleep_when_something_came_just_before() -> None:
    box: Mailbox[int] = Mailbox()
    box.put(1)
    assert box.sleep_begins() is False
    box.take(1)
    assert box.sleep_begins() is True
    box.sleep_ended(signalled=False)
    box.close()


def test_an_awake_taker_is_not_signalled() -> None:
    box: Mailbox[int] = Mailbox()
    box.put(1)
    try:
        os.eventfd_read(box.fd)
        signalled = True
    except BlockingIOError:
        signalled = False
    assert not signalled
    box.close()


def test_nothing_is_lost_between_two_threads() -> None:
    box: Mailbox[int] = Mailbox()
    count = 20_000
    got: list[int] = []

    def take() -> None:
        while len(got) < count:
            box.wait(100)
            got.extend(box.take(64))

    thread = threading.Thread(target=take)
    thread.start()
    for number in range(count):
        box.put(number)
    thread.join(30)
    assert got == list(range(count))
    box.close()
