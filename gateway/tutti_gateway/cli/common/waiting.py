"""Waiting for something that others do: a line on a terminal that tells why it lasts, else a line for each reason, once."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from tutti_gateway.cli.common.output import can_draw, note

LOOK_S = 0.25


class Deadline:
    """The end of one wait that has several parts."""

    def __init__(self, timeout_s: float) -> None:
        """It begins now."""
        self.timeout_s = timeout_s
        self._until_s = time.monotonic() + timeout_s

    @property
    def left_s(self) -> float:
        """Seconds, 0 when it is over."""
        return max(0.0, self._until_s - time.monotonic())

    def pause(self) -> bool:
        """Sleep a little; whether there is time for one more look."""
        time.sleep(min(LOOK_S, self.left_s))
        return self.left_s > 0


@contextmanager
def telling(title: str, reason: Callable[[], str]) -> Iterator[None]:
    """While the block runs, tell on standard error what is waited for, and why as `reason` says ("": nothing is known)."""
    stop = threading.Event()
    thread = threading.Thread(target=_draw if can_draw(sys.stderr) else _write, args=(title, reason, stop), daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


def _draw(title: str, reason: Callable[[], str], stop: threading.Event) -> None:
    from rich.console import Console
    from rich.markup import escape

    with Console(stderr=True).status(escape(title)) as status:
        while not stop.wait(LOOK_S):
            why = reason()
            status.update(escape(f"{title}: {why}" if why else title))


def _write(title: str, reason: Callable[[], str], stop: threading.Event) -> None:
    said: set[str] = set()  # what gateways say takes turns while one after another is asked
    while not stop.wait(LOOK_S):
        why = reason()
        if why and why not in said:
            said.add(why)
            note(f"{title}: {why}")
