"""A TCP proxy in the middle of connections that forwards and records the bytes, or drops them."""

from __future__ import annotations

import selectors
import socket
import threading
import time

_BYTES_KEPT_MAX = 1 << 20


class Tap:
    """Listens on a port of its own and passes on to another, both ways.

    Attributes:
        heard: what came last.
        dead: ends of connections that are swallowed and were not closed yet.
    """

    def __init__(self, to: int) -> None:
        self._to = to
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self.heard = b""
        self.dead = 0
        self._swallows = threading.Event()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> Tap:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join(10)

    def swallow(self) -> None:
        """Keep the existing connections open, read from them, and forward nothing, without a sign to either end."""
        self._swallows.set()
        while self._swallows.is_set():
            time.sleep(0.01)

    def _run(self) -> None:
        ends: dict[socket.socket, socket.socket] = {}
        dead: set[socket.socket] = set()
        with selectors.DefaultSelector() as selector, self._listener:
            selector.register(self._listener, selectors.EVENT_READ)
            while not self._over.is_set():
                if self._swallows.is_set():
                    dead |= set(ends)
                    self.dead = len(dead)
                    self._swallows.clear()
                for key, _ in selector.select(0.05):
                    if key.fileobj is self._listener:
                        one, _ = self._listener.accept()
                        other = socket.create_connection(("127.0.0.1", self._to))
                        ends[one], ends[other] = other, one
                        selector.register(one, selectors.EVENT_READ)
                        selector.register(other, selectors.EVENT_READ)
                        continue
                    end = next(one for one in ends if one is key.fileobj)
                    data = end.recv(65_536)
                    if end in dead:
                        if not data:
                            selector.unregister(end)
                            dead.discard(end)
                            self.dead = len(dead)
                    elif data:
                        self.heard = (self.heard + data)[-_BYTES_KEPT_MAX:]
                        ends[end].sendall(data)
                    else:
                        for one in (end, ends.pop(end)):
                            selector.unregister(one)
                            ends.pop(one, None)
                            one.close()
            for one in ends:
                one.close()
