"""A listener in the middle of a connection, who passes everything on and keeps a copy."""

from __future__ import annotations

import selectors
import socket
import threading

_BYTES_KEPT_MAX = 1 << 20


class Tap:
    """Listens on a port of its own and passes on to another, both ways."""

    def __init__(self, to: int) -> None:
        self._to = to
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self.heard = b""
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> Tap:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join(10)

    def _run(self) -> None:
        ends: dict[socket.socket, socket.socket] = {}
        with selectors.DefaultSelector() as selector, self._listener:
            selector.register(self._listener, selectors.EVENT_READ)
            while not self._over.is_set():
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
                    if data:
                        self.heard = (self.heard + data)[-_BYTES_KEPT_MAX:]
                        ends[end].sendall(data)
                    else:
                        for one in (end, ends.pop(end)):
                            selector.unregister(one)
                            ends.pop(one, None)
                            one.close()
            for one in ends:
                one.close()
