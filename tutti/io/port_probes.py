"""Looks at who is where no gateway answers (`peek`), in threads of their own: one for an address, whoever waits for it."""

from __future__ import annotations

import threading
from collections.abc import Callable

from tutti.common.address import Address
from tutti.common.fork import after_fork
from tutti.io.port_probe import Sight, peek


class Look:
    """One look, which takes up to some seconds. `seen` is there when it is over."""

    def __init__(self, address: Address) -> None:
        """Made by `look`."""
        self.address = address
        self.seen: Sight | None = None
        self.wakes: list[Callable[[], None]] = []

    def run(self) -> None:
        """Look, then wake all who wait."""
        seen = Sight("it did not answer")
        try:
            seen = peek(self.address)
        finally:
            self.end(seen)

    def end(self, seen: Sight) -> None:
        """That was seen."""
        with _lock:
            self.seen = seen
            if _running.get(self.address) is self:
                del _running[self.address]
        for wake in self.wakes:
            wake()


_running: dict[Address, Look] = {}
_lock = threading.Lock()


def look(address: Address, wake: Callable[[], None]) -> Look:
    """Begin to look at who is there, or wait with others for the look that is under way; `wake` is called when `seen` is there."""
    with _lock:
        running = _running.get(address)
        if running is not None:
            running.wakes.append(wake)
            return running
        begun = _running[address] = Look(address)
        begun.wakes.append(wake)
    try:
        threading.Thread(target=begun.run, name="tutti-look", daemon=True).start()
    except RuntimeError as error:  # there is no thread for it
        begun.end(Sight(f"it did not answer, and nobody can look who is there: {error}"))
    return begun


def _after_fork() -> None:
    global _lock  # noqa: PLW0603 - it may have been held by a thread that is not in the child
    _lock = threading.Lock()
    _running.clear()


after_fork(_after_fork)
