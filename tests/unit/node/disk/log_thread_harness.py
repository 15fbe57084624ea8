"""A log thread with a fake log, and requests to it."""

from __future__ import annotations

import time
from collections.abc import Callable

from tests.unit.node.fakes import LOG, Writer, batch_frame
from tutti.data.hard_state import HardState
from tutti_gateway.core.protocol.actions import Deliver, Persist
from tutti_gateway.core.protocol.events import Event, Persisted
from tutti_gateway.node.disk.log_thread import LogThread


class Bench:
    """A disk whose reports are noted among what it did."""

    def __init__(self) -> None:
        self.writer = Writer()
        self.reports: list[Event] = []
        self.notified = 0
        self.disk = LogThread(self.writer, self.report, self.notify, LOG)

    def report(self, event: Event) -> None:
        self.reports.append(event)
        if isinstance(event, Persisted):
            self.writer.done.append(f"persisted {event.token}")

    def notify(self) -> None:
        self.notified += 1


def persist(token: int, *sequences: int, promised: int | None = None) -> Persist:
    scalars = None if promised is None else HardState(promised=promised)
    return Persist(token, tuple(batch_frame(sequence=sequence) for sequence in sequences), scalars)


def run(position: int, *aborted: int, frames: int = 1) -> Deliver:
    """A decided run from a position on; the sequence of each frame is its position."""
    placed = [batch_frame(sequence=at) for at in range(position, position + frames)]
    for frame in placed:
        frame.stamp(1, frame.first_sequence, 0)
    return Deliver(tuple(placed), tuple(range(position, position + frames)), frozenset(aborted), position + frames)


def wait_for(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.002)
