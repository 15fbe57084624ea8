"""Descriptors set aside for the log of a gateway with keys, so that a crowd of connections never stops its writing.

ZeroMQ accepts connections until the system gives no descriptor more. Then its port takes no further ones, and the spare ones are
let go, for the log and the house, which wait for them. When there is room again they are set aside anew, and the port is open.
(Plain sockets leave others theirs by themselves: `gateway.zmtp.listening`.)
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from typing import Protocol

from gateway.core import limits
from gateway.descriptors import TOO_MANY


class Port(Protocol):
    """What is needed of the port.

    Attributes:
        listening: whether it takes connections.
    """

    listening: bool

    def refuse(self) -> None:
        """Take no connections; those that there are stay."""

    def turn_away(self) -> bool:
        """End who waits to be accepted; False if not all of them, for want of a descriptor."""

    def listen(self) -> None:
        """Take connections again."""


class SpareFiles:
    """Looks after the spare descriptors. Owned by one thread."""

    def __init__(self, port: Port, tell: Callable[[str], None], count: int = limits.SPARE_FILES) -> None:
        """Set `count` aside, if there are so many. `tell`: an operator must know it."""
        self._port = port
        self._tell = tell
        self._count = count
        self._held: list[int] = []
        self._one = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
        self._take()

    def look(self) -> None:
        """Take no connections when descriptors have run out, let the spare ones go, and take connections when all is well. Called
        about once a second.
        """
        port = self._port
        if port.listening:
            if not self._can_have(1):
                port.refuse()
                # Who waits to be accepted would have what is let go: they are ended, by as few of them as that takes.
                while self._held and not port.turn_away():
                    os.close(self._held.pop())
                self._let_go()
                self._tell("no file descriptor is left: new connections are refused; raise the limit of open files")
        elif self._take():
            port.listen()
            self._tell("file descriptors are free again: connections are taken")

    def close(self) -> None:
        """Let everything go. Harmless when that is done already."""
        self._let_go()
        if self._one >= 0:
            os.close(self._one)
        self._one = -1

    def _take(self) -> bool:
        """Set the spare ones aside, where as many again stay free."""
        if not self._can_have(2 * self._count):
            return False
        with contextlib.suppress(OSError):
            while len(self._held) < self._count:
                self._held.append(os.dup(self._one))
        return True

    def _can_have(self, count: int) -> bool:
        with contextlib.ExitStack() as had:
            try:
                for _ in range(count):
                    had.callback(os.close, os.dup(self._one))
            except OSError as error:
                if error.errno not in TOO_MANY:
                    raise
                return False
        return True

    def _let_go(self) -> None:
        for fd in self._held:
            os.close(fd)
        self._held.clear()
