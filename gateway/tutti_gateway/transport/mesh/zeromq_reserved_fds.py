"""Descriptors set aside for the log of a gateway with keys, so that a crowd of connections never stops its writing.

ZeroMQ accepts connections until the system gives no descriptor more. Then its port takes no further ones, and the spare ones are
let go, for the log and the house, which wait for them. They have numbers that the client port leaves to others
(`tutti.zmtp.listener`), so that clients do not get them either. When there is room again the port is open again.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import sys
from collections.abc import Callable

from tutti.errors import TuttiError
from tutti.runtime.reserved_fds import TOO_MANY
from tutti.zmtp.listener import RAISE, descriptors_for, spare_descriptors
from tutti_gateway.transport.mesh.zeromq_listener import GroupPort

_ROOM_PART = 4  # as many as that part of the spare ones have to be free beside them for the port to open again
_ENOUGH_PART = 2  # and that part of them to be set aside: files that were opened meanwhile have the numbers of the others
_NONE = f"no file descriptor is left: new connections are refused; {RAISE}"


class SpareFiles:
    """Looks after the spare descriptors. Owned by one thread."""

    def __init__(self, port: GroupPort, tell: Callable[[str], None]) -> None:
        """Set aside what there is for them. `tell`: an operator must know it; the same may be told again and again.

        Raises:
            TuttiError: there is no descriptor at all.
        """
        self._port = port
        self._tell = tell
        self._held: list[int] = []
        self._bound = 0
        try:
            self._one = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
        except OSError as error:
            raise TuttiError(f"nothing can be set aside for the log: {error.strerror}; {RAISE}") from error
        self._take()

    def look(self) -> None:
        """Take no connections when descriptors have run out, let the spare ones go, and take connections when all is well. Called
        about once a second.
        """
        port = self._port
        if not port.listening:
            if self._take() and self._can_have(spare_descriptors() // _ROOM_PART + 1):
                port.listen()
                self._tell("file descriptors are free again: connections are taken")
            else:
                self._let_go()  # they are the log's as long as there are no others
                self._tell(_NONE)
        elif self._can_have(1):
            self._take()  # what there was no room for before
        else:
            self._refuse()

    def _refuse(self) -> None:
        try:
            self._port.refuse()
        except OSError as error:
            self._tell(f"no file descriptor is left, and connections cannot be refused on this system ({error.strerror}): {RAISE}")
        else:
            self._tell(_NONE)
            # Who waits to be accepted would have what is let go: they are ended, by as few of them as that takes.
            while self._held and not self._port.turn_away():
                os.close(self._held.pop())
        self._let_go()

    def close(self) -> None:
        """Let everything go. Harmless when that is done already."""
        self._let_go()
        if self._one >= 0:
            os.close(self._one)
        self._one = -1

    def _take(self) -> bool:
        """Set aside what is lacking of them; whether there are enough."""
        bound = descriptors_for(2)  # from there on the client port has none
        if bound != self._bound:  # the limit is another one
            self._let_go()
            self._bound = bound
            self._port.renew()
        count = spare_descriptors()
        with contextlib.suppress(OSError):  # there is none, or none from there on
            while len(self._held) < count:
                self._held.append(fcntl.fcntl(self._one, fcntl.F_DUPFD_CLOEXEC, 0 if bound == sys.maxsize else bound))
        return len(self._held) >= count // _ENOUGH_PART

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
