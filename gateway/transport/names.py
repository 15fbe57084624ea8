"""Names of hosts, looked up beside the thread that needs them: a name server that does not answer must hold nobody up.

ZeroMQ would look a name up in the thread that moves all messages, so that one dead name stops every connection for seconds. Here
each name has a thread of its own while it is looked up, so that none waits for another one either, and only numbers are handed to
ZeroMQ.
"""

from __future__ import annotations

import os
import select
import socket
import threading
from collections.abc import Callable
from ipaddress import ip_address

from gateway.core import limits

MS_PER_S = 1000
Look = Callable[[str], str]


def look_up(host: str) -> str:
    """The first address of a host, as the system knows it.

    Raises:
        OSError: it knows none.
    """
    found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    return str(found[0][4][0])


class Names:
    """What is known of names. Owned by one thread, which is never held up; those that look up, nobody waits for.

    Attributes:
        fd: readable when there is something to `take`.
    """

    def __init__(self, look: Look = look_up) -> None:
        """`look` is what the other threads call."""
        self._look = look
        self._answered: list[tuple[str, str, str]] = []
        self._under_way: set[str] = set()
        self._known: dict[str, str] = {}
        self._wrong: dict[str, str] = {}
        self._lock = threading.Lock()  # an answer and its count in the descriptor are one
        self.fd = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)

    def address(self, host: str) -> str:
        """The address of a host, empty while it is not known. A number is its own address; a name is looked up again each time, and
        until that is done it is what it was.
        """
        try:
            return str(ip_address(host))
        except ValueError:
            pass
        if host not in self._under_way and len(self._under_way) < limits.ROSTER_MAX:
            self._under_way.add(host)
            try:
                threading.Thread(target=self._run, args=(host,), name=f"name {host}", daemon=True).start()
            except RuntimeError as error:  # the system has no thread left
                self._answer(host, "", str(error))
        return self._known.get(host, "")

    def wrong(self, host: str) -> str:
        """Why the host's address is not known, as the system said when it was asked last; empty if it is, or nobody asked yet."""
        return self._wrong.get(host, "")

    def wait(self, seconds: float) -> None:
        """Sleep until there is something to `take`, for so long."""
        poll = select.poll()
        poll.register(self.fd, select.POLLIN)
        poll.poll(max(0.0, seconds) * MS_PER_S)

    def take(self) -> dict[str, str]:
        """Take in what was found: the addresses by host, empty where there is none."""
        with self._lock:
            answered, self._answered = self._answered, []
            if answered:
                os.eventfd_read(self.fd)
        for host, address, reason in answered:
            self._under_way.discard(host)
            if address:
                self._known[host] = address
                self._wrong.pop(host, None)
            else:
                self._wrong[host] = reason
        return {host: address for host, address, _ in answered}

    def _run(self, host: str) -> None:
        """In a thread: look one up."""
        try:
            self._answer(host, self._look(host), "")
        except Exception as error:  # noqa: BLE001 - whatever it is, the host is told as unknown with it, and asked for again
            reason = error.strerror if isinstance(error, OSError) else None
            self._answer(host, "", (reason or str(error) or type(error).__name__).lower())

    def _answer(self, host: str, address: str, reason: str) -> None:
        with self._lock:
            if self.fd >= 0:
                self._answered.append((host, address, reason))
                os.eventfd_write(self.fd, 1)

    def close(self) -> None:
        """Look nothing up any more; what is under way is left to itself."""
        with self._lock:
            if self.fd >= 0:
                os.close(self.fd)
            self.fd = -1
