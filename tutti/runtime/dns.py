"""DNS lookups in background threads, so that a slow name server never blocks an I/O thread.

A blocking lookup in an I/O thread would stop every connection for seconds. Each lookup has its own thread, so lookups of different
names do not delay each other. The process runs at most one lookup of a name at a time, and all resolvers share the answer. If all
resolvers have given up before the answer arrives, the answer is cached for a short time, because they may repeat the request.
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
_LATE_S = limits.CONNECT_TIMEOUT_US / 1e6  # time for which an answer is cached that arrives after all resolvers gave up
Lookup = Callable[[str], str]


def addresses(host: str) -> list[str]:
    """Return one or more addresses of a host, in the system's order. A link-local address includes its scope.

    Raises:
        OSError: the lookup failed.
        UnicodeError: the text is not a valid host name.
    """
    return [_with_scope(*found[4]) for found in socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)]


def _with_scope(address: str | int, _port: str | int, _flow: int = 0, scope: int = 0) -> str:
    return f"{address}%{scope}" if scope and "%" not in str(address) else str(address)


def look_up(host: str) -> str:
    """Return the first address of a host.

    Raises:
        OSError, UnicodeError: as `addresses`.
    """
    return addresses(host)[0]


def ip_literal(host: str) -> str:
    """Return `host` if it is an IP address; empty if it is a name."""
    try:
        return str(ip_address(host))
    except ValueError:
        return ""


class Resolver:
    """Resolver with cached addresses. The thread that owns the resolver never blocks, because lookups run in other threads.

    Attributes:
        fd: a descriptor that is readable when `drain` has answers to return.
    """

    def __init__(self, lookup: Lookup = look_up) -> None:
        """Use `lookup` in other threads.

        Raises:
            OSError: the process has no free descriptor.
        """
        self._lookup = lookup
        self._answered: list[tuple[str, str, str]] = []
        self._running: set[str] = set()
        self._addresses: dict[str, str] = {}
        self._errors: dict[str, str] = {}
        self.fd = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)

    def address(self, host: str) -> str:
        """Return the address of a host; empty while the address is unknown.

        An IP address is returned unchanged. Each call for a name starts a lookup, and returns the last known address without
        waiting for the answer.
        """
        found = ip_literal(host)
        if found:
            return found
        if host not in self._running and len(self._running) < limits.ROSTER_MAX:
            self._running.add(host)
            _request(self._lookup, host, self)
        return self._addresses.get(host, "")

    def error(self, host: str) -> str:
        """Return the error of the host's last lookup; empty if the lookup succeeded."""
        return self._errors.get(host, "")

    def wait(self, seconds: float) -> None:
        """Sleep until `drain` has answers to return, at most `seconds`."""
        poll = select.poll()
        poll.register(self.fd, select.POLLIN)
        poll.poll(max(0.0, seconds) * MS_PER_S)

    def drain(self) -> dict[str, str]:
        """Process the new answers. Return them as host -> address; the address is empty if the lookup failed."""
        with _lock:
            answered, self._answered = self._answered, []
            if answered:
                os.eventfd_read(self.fd)
        for host, address, reason in answered:
            self._running.discard(host)
            if address:
                self._addresses[host] = address
                self._errors.pop(host, None)
            else:
                self._errors[host] = reason
        return {host: address for host, address, _ in answered}

    def add_answer(self, host: str, address: str, reason: str) -> None:
        """Add the answer of a lookup: an address or an error. The thread of the lookup calls this, and holds the lock."""
        self._answered.append((host, address, reason))
        os.eventfd_write(self.fd, 1)

    def close(self) -> None:
        """Stop waiting for answers. Running lookups continue, because another resolver may use their answers."""
        with _lock:
            for host in self._running:
                waiting = _waiting.get((self._lookup, host), [])
                if self in waiting:
                    waiting.remove(self)
            if self.fd >= 0:
                os.close(self.fd)
            self.fd = -1


_Key = tuple[Lookup, str]
_lock = threading.Lock()  # guards the tables below, and keeps the answers consistent with the eventfd counter
_waiting: dict[_Key, list[Resolver]] = {}  # running lookup -> resolvers that wait for it
_late: dict[_Key, tuple[float, str, str]] = {}  # late answers: time of arrival (monotonic), address, error


def _request(lookup: Lookup, host: str, resolver: Resolver) -> None:
    """Get `resolver` an answer for a host: from a running lookup, from a cached late answer, or from a new lookup."""
    key = lookup, host
    with _lock:
        if key in _waiting:
            _waiting[key].append(resolver)
            return
        at, address, reason = _late.pop(key, (-_LATE_S, "", ""))
        if time.monotonic() - at < _LATE_S:
            resolver.add_answer(host, address, reason)
            return
        _waiting[key] = [resolver]
    try:
        threading.Thread(target=_run, args=key, name=f"name {host}", daemon=True).start()
    except RuntimeError as error:  # the thread limit is reached
        _answer(key, "", str(error))


def _run(lookup: Lookup, host: str) -> None:
    """Perform a lookup. Runs in its own thread."""
    try:
        found, reason = lookup(host), ""
    except Exception as error:  # noqa: BLE001 - any failure is an answer: the host is unknown, and the next request retries
        text = error.strerror if isinstance(error, OSError) else None
        found, reason = "", (text or str(error) or type(error).__name__).lower()
    _answer((lookup, host), found, reason)


def _answer(key: _Key, address: str, reason: str) -> None:
    with _lock:
        waiting = _waiting.pop(key)
        for resolver in waiting:
            resolver.add_answer(key[1], address, reason)
        if not waiting:
            _late[key] = time.monotonic(), address, reason
            while len(_late) > limits.ROSTER_MAX:
                del _late[next(iter(_late))]


def _reset_after_fork() -> None:
    """Reset the tables in a forked child, which does not have the lookup threads of its parent."""
    global _lock  # noqa: PLW0603 - the old lock may be held by a thread that only the parent has
    _lock = threading.Lock()
    _waiting.clear()
    _late.clear()


if hasattr(os, "register_at_fork"):  # systems without fork need no reset
    os.register_at_fork(after_in_child=_reset_after_fork)
