"""Shows on standard error why a command waits.

On a terminal, a status line shows the current reason. If standard error is not a terminal, each new reason is printed once.
"""

from __future__ import annotations

import logging
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from tutti_gateway.cli.common.output import can_draw, note

POLL_S = 0.25


class TimeLimit:
    """Time limit for the total of all waits of a command."""

    def __init__(self, timeout_s: float) -> None:
        """Start the time limit now."""
        self.timeout_s = timeout_s
        self._until_s = time.monotonic() + timeout_s

    @property
    def left_s(self) -> float:
        """Return the seconds until the time limit, or 0 if it has passed."""
        return max(0.0, self._until_s - time.monotonic())

    def pause(self) -> bool:
        """Sleep for one polling interval, and return False if the time limit has passed."""
        time.sleep(min(POLL_S, self.left_s))
        return self.left_s > 0


@contextmanager
def quiet_search() -> Iterator[None]:
    """Hide the log lines of the client's search for a gateway, because the error of a failed search contains the same results."""
    loggers = [logging.getLogger("tutti.client.producer"), logging.getLogger("tutti.client.reader")]
    for logger in loggers:
        logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        for logger in loggers:
            logger.setLevel(logging.NOTSET)


@contextmanager
def showing_reason(title: str, reason: Callable[[], str]) -> Iterator[None]:
    """During the block, show `title` on standard error, with the text that `reason()` returns ("" if no reason is known)."""
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

    if stop.wait(POLL_S):
        return  # a status line that appears for a moment only would flicker
    with Console(stderr=True).status(escape(title)) as status:
        while not stop.wait(POLL_S):
            current = reason()
            status.update(escape(f"{title}: {current}" if current else title))


def _write(title: str, reason: Callable[[], str], stop: threading.Event) -> None:
    shown: set[str] = set()  # all printed reasons, because reasons alternate while the client tries several gateways in turn
    while not stop.wait(POLL_S):
        current = reason()
        if current and current not in shown:
            shown.add(current)
            note(f"{title}: {current}")
