"""Names of hosts, looked up beside the thread that needs them: a name server that does not answer must hold nobody up.

ZeroMQ would look a name up in the thread that moves all messages, so that one dead name stops every connection for seconds. Here a
thread of its own does, and only numbers are handed to ZeroMQ.
"""

from __future__ import annotations

import queue
import socket
import threading
from collections.abc import Callable
from ipaddress import ip_address

from gateway.core import limits

Look = Callable[[str], str]


def look_up(host: str) -> str:
    """The first address of a host, as the system knows it.

    Raises:
        OSError: it knows none.
    """
    found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    return str(found[0][4][0])


class Names:
    """What is known of names. Owned by one thread; another, which nobody waits for at the end, looks up."""

    def __init__(self, look: Look = look_up) -> None:
        """`look` is what the other thread calls."""
        self._look = look
        self._asked: queue.SimpleQueue[str] = queue.SimpleQueue()
        self._answered: queue.SimpleQueue[tuple[str, str, str]] = queue.SimpleQueue()
        self._under_way: set[str] = set()
        self._known: dict[str, str] = {}
        self._wrong: dict[str, str] = {}
        self._thread: threading.Thread | None = None

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
            self._start()
            self._asked.put(host)
        self._take(limits.NAME_WAIT_US / 1_000_000 if host not in self._known and host not in self._wrong else 0)
        return self._known.get(host, "")

    def wrong(self, host: str) -> str:
        """Why the host's address is not known, as the system said when it was asked last; empty if it is, or nobody asked yet."""
        self._take(0)
        return self._wrong.get(host, "")

    def _take(self, wait_s: float) -> None:
        """Take in what was found; wait for the first of it so long, as most names are known at once."""
        while True:
            try:
                host, address, reason = self._answered.get(timeout=wait_s) if wait_s else self._answered.get_nowait()
            except queue.Empty:
                return
            wait_s = 0
            self._under_way.discard(host)
            if address:
                self._known[host] = address
                self._wrong.pop(host, None)
            else:
                self._wrong[host] = reason

    def _start(self) -> None:
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="names", daemon=True)
            self._thread.start()

    def _run(self) -> None:
        while True:
            host = self._asked.get()
            if not host:
                return
            try:
                self._answered.put((host, self._look(host), ""))
            except (OSError, UnicodeError) as error:  # a label that is too long for a name is a UnicodeError
                reason = error.strerror if isinstance(error, OSError) else None
                self._answered.put((host, "", (reason or str(error)).lower()))

    def close(self) -> None:
        """Look nothing up any more; what is under way is left to itself."""
        if self._thread is not None:
            self._asked.put("")
