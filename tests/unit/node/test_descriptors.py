"""Proves that sockets which the loop knows by their descriptors alone are looked at when they are new: nobody was woken for what
came to them before they were looked at in vain.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Container, Iterator, Sequence
from typing import Any

import pytest

from tests.unit.node.bench import Bench
from tests.unit.node.fakes import LOG, Wire
from tutti_gateway.core import limits
from tutti_gateway.core.protocol.events import LinkChanged, Received
from tutti_gateway.core.protocol.messages import Probe
from tutti_gateway.node.clients.port import ClientPort
from tutti_gateway.node.common import memory
from tutti_gateway.node.common.mailbox import Mailbox
from tutti_gateway.node.driver import Happening
from tutti_gateway.node.loop import Loop


class Quiet(Wire):
    """A transport whose one descriptor never becomes readable."""

    def __init__(self) -> None:
        super().__init__()
        self.fd = os.eventfd(0)
        self.looks: list[object] = []

    @property
    def unread(self) -> bool:
        return False

    def sockets(self) -> Sequence[object]:
        return [self.fd]

    def drain(self, messages_max: int, bytes_max: int, ready: object = None) -> list[Received | LinkChanged]:
        assert isinstance(ready, Container)
        if self.fd not in ready:
            return []
        self.looks.append(self.fd)
        return super().drain(messages_max, bytes_max)


@pytest.fixture
def wire() -> Iterator[Quiet]:
    wire = Quiet()
    yield wire
    os.close(wire.fd)


def wait_for(condition: Any) -> None:
    deadline = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


@contextlib.contextmanager
def running(wire: Quiet) -> Iterator[tuple[Bench, Mailbox[Happening]]]:
    """A loop over that transport, in a thread."""
    bench = Bench()
    port = ClientPort("127.0.0.1", 0)
    inbox: Mailbox[Happening] = Mailbox()
    done: list[int] = []
    loop = Loop(bench.driver, port, wire, inbox, lambda _: None, LOG)
    thread = threading.Thread(target=loop.run, args=(lambda: bool(done),))
    thread.start()
    try:
        yield bench, inbox
    finally:
        done.append(1)
        inbox.wake()
        thread.join(10)
        port.close()
        inbox.close()


def test_what_came_before_a_descriptor_was_polled_is_found(wire: Quiet) -> None:
    with running(wire) as (bench, inbox):
        wait_for(lambda: len(wire.looks) == 1)  # as it begins
        inbox.wake()
        wire.coming = [Received(2, Probe())]
        wire.changes += 1
        inbox.wake()
        wait_for(lambda: Received(2, Probe()) in bench.stack.events)
        assert len(wire.looks) == 2


def test_descriptors_that_are_new_as_memory_is_let_go_of_are_looked_at(wire: Quiet, monkeypatch: pytest.MonkeyPatch) -> None:
    """A link is made anew in the same look after the house in which memory is found to be above its bound."""

    def resident_bytes() -> int:
        if wire.changes or not wire.looks:
            return 0
        wire.changes += 1
        wire.coming = [Received(2, Probe())]
        return limits.NODE_MEMORY_BYTES_MAX + 1

    monkeypatch.setattr(memory, "resident_bytes", resident_bytes)
    with running(wire) as (bench, _):
        wait_for(lambda: Received(2, Probe()) in bench.stack.events)
