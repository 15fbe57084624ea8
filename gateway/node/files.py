"""Descriptors set aside for the log of a gateway with keys, so that a crowd of connections never stops its writing.

ZeroMQ accepts connections until the system gives no descriptor more. Then the client port stops listening, the spare ones are let
go, for the log and the house. When there is room again they are set aside anew, and the port listens. (Plain sockets leave others
theirs by themselves: `gateway.zmtp.listening`.)
"""

from __future__ import annotations

import contextlib
import errno
import os
from typing import Protocol

from structlog.typing import FilteringBoundLogger

from gateway.core import limits
from gateway.errors import TuttiError

TOO_MANY = (errno.EMFILE, errno.ENFILE)


class Listening(Protocol):
    """What is needed of the client port."""

    listening: bool

    def refuse(self) -> None:
        """Stop listening; connections that there are stay."""

    def listen(self) -> None:
        """Listen again."""


class SpareFiles:
    """Looks after the spare descriptors. Owned by one thread."""

    def __init__(self, port: Listening, log: FilteringBoundLogger, count: int = limits.SPARE_FILES) -> None:
        """Set `count` aside, if there are so many."""
        self._port = port
        self._log = log
        self._count = count
        self._held: list[int] = []
        self._one = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
        self._take()

    def look(self) -> None:
        """Refuse connections when descriptors have run out, let the spare ones go, and take connections when all is well; one step
        at a time, so that a port that was told to refuse has done so before anything is let go. Called about once a second.
        """
        port = self._port
        if port.listening:
            if not self._can_have(1):
                self._log.error("no file descriptor is left: new connections are refused; raise the limit of open files")
                port.refuse()
        elif self._held:
            self._let_go()
        elif self._take():
            try:
                port.listen()
            except TuttiError as error:
                self._log.error("the client port cannot be opened again", error=str(error))
            else:
                self._log.info("file descriptors are free again: connections are taken")

    def close(self) -> None:
        """Let everything go."""
        self._let_go()
        os.close(self._one)

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
