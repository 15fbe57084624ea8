"""Names of hosts, looked up beside the threads that need them: a name server that does not answer must hold nobody up.

Who moves messages would wait for the system's word, so that one dead name stops every connection for seconds. Here each name has a
thread of its own while it is looked up, so that none waits for another one either. There is one of it in a process, whoever asks:
who gives up and asks again waits for the same answer, and one that came meanwhile is kept for who is back soon.
"""

from __future__ import annotations

import os
import select
import socket
import threading
import time
from collections.abc import Callable
from ipaddress import ip_address

from tutti import limits

MS_PER_S = 1000
_LATE_S = limits.CONNECT_TIMEOUT_US / 1e6  # an answer that nobody waited for is good for so long
Look = Callable[[str], str]


def addresses(host: str) -> list[str]:
    """The addresses of a host, in the system's order: at least one. One that is good on a single network names that, too.

    Raises:
        OSError: it knows none.
        UnicodeError: no host can have that name.
    """
    return [_told(*found[4]) for found in socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)]


def _told(address: str | int, _port: str | int, _flow: int = 0, scope: int = 0) -> str:
    return f"{address}%{scope}" if scope and "%" not in str(address) else str(address)


def look_up(host: str) -> str:
    """The first address of a host, as the system knows it.

    Raises:
        OSError, UnicodeError: it knows none.
    """
    return addresses(host)[0]


def number(host: str) -> str:
    """The address that a host is by itself; empty for a name."""
    try:
        return str(ip_address(host))
    except ValueError:
        return ""


class Names:
    """What is known of names. Owned by one thread, which is never held up; those that look up, nobody waits for.

    Attributes:
        fd: readable when there is something to `take`.
    """

    def __init__(self, look: Look = look_up) -> None:
        """`look` is what the other threads call.

        Raises:
            OSError: no descriptor is left.
        """
        self._look = look
        self._answered: list[tuple[str, str, str]] = []
        self._under_way: set[str] = set()
        self._known: dict[str, str] = {}
        self._wrong: dict[str, str] = {}
        self.fd = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)

    def address(self, host: str) -> str:
        """The address of a host, empty while it is not known. A number is its own address; a name is looked up again each time, and
        until that is done it is what it was.
        """
        found = number(host)
        if found:
            return found
        if host not in self._under_way and len(self._under_way) < limits.ROSTER_MAX:
            self._under_way.add(host)
            _ask(self._look, host, self)
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
        with _lock:
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

    def hear(self, host: str, address: str, reason: str) -> None:
        """A lookup is over: an address, or why there is none. Called by whoever made it, with the lock."""
        self._answered.append((host, address, reason))
        os.eventfd_write(self.fd, 1)

    def close(self) -> None:
        """Look nothing up any more; what is under way is left to itself, and to who asks for it soon."""
        with _lock:
            for host in self._under_way:
                waiting = _waiting.get((self._look, host), [])
                if self in waiting:
                    waiting.remove(self)
            if self.fd >= 0:
                os.close(self.fd)
            self.fd = -1


# One lookup of a name, whoever waits

_Key = tuple[Look, str]
_lock = threading.Lock()  # over all that follows, and over what is answered: an answer and its count in the descriptor are one
_waiting: dict[_Key, list[Names]] = {}  # for each lookup that is under way
_late: dict[_Key, tuple[float, str, str]] = {}  # when nobody waited any more (monotonic): an address, or why there is none


def _ask(look: Look, host: str, names: Names) -> None:
    """Have `names` hear of a host: of the lookup that is under way, or came too late just now, or of a new one."""
    key = look, host
    with _lock:
        if key in _waiting:
            _waiting[key].append(names)
            return
        at, address, reason = _late.pop(key, (-_LATE_S, "", ""))
        if time.monotonic() - at < _LATE_S:
            names.hear(host, address, reason)
            return
        _waiting[key] = [names]
    try:
        threading.Thread(target=_run, args=key, name=f"name {host}", daemon=True).start()
    except RuntimeError as error:  # the system has no thread left
        _answer(key, "", str(error))


def _run(look: Look, host: str) -> None:
    """In a thread: look one up."""
    try:
        found, reason = look(host), ""
    except Exception as error:  # noqa: BLE001 - whatever it is, the host is told as unknown with it, and asked for again
        text = error.strerror if isinstance(error, OSError) else None
        found, reason = "", (text or str(error) or type(error).__name__).lower()
    _answer((look, host), found, reason)


def _answer(key: _Key, address: str, reason: str) -> None:
    with _lock:
        waiting = _waiting.pop(key)
        for names in waiting:
            names.hear(key[1], address, reason)
        if not waiting:
            _late[key] = time.monotonic(), address, reason
            while len(_late) > limits.ROSTER_MAX:
                del _late[next(iter(_late))]


def _begin_anew() -> None:
    """In a forked child: the threads are the parent's."""
    global _lock  # noqa: PLW0603 - a thread that is not here may have it
    _lock = threading.Lock()
    _waiting.clear()
    _late.clear()


if hasattr(os, "register_at_fork"):  # on a system where nothing forks there is nothing to tell
    os.register_at_fork(after_in_child=_begin_anew)
