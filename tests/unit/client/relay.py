"""A TCP relay between a client and a gateway that can fall silent: it forwards nothing, and both connections stay open."""

from __future__ import annotations

import selectors
import socket
import threading
from types import TracebackType


class Relay:
    """Passes bytes both ways between its own port and another one on this machine."""

    def __init__(self, port: int) -> None:
        self._to = port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._ends: dict[socket.socket, socket.socket] = {}
        self._silent = threading.Event()
        self._stop = threading.Event()
        self.accepted = 0
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    @property
    def url(self) -> str:
        return f"tutti://127.0.0.1:{self.port}"

    def fall_silent(self) -> None:
        self._silent.set()

    def _run(self) -> None:
        with selectors.DefaultSelector() as selector:
            selector.register(self._listener, selectors.EVENT_READ)
            while not self._stop.is_set():
                for key, _ in selector.select(0.02):
                    if self._silent.is_set():
                        self._stop.wait(0.02)
                    elif key.fileobj is self._listener:
                        self._accept(selector)
                    else:
                        self._pass_on(selector, key.fileobj)  # type: ignore[arg-type]  # only sockets are registered
            for end in self._ends:
                end.close()
        self._listener.close()

    def _accept(self, selector: selectors.BaseSelector) -> None:
        near, _ = self._listener.accept()
        self.accepted += 1
        far = socket.create_connection(("127.0.0.1", self._to))
        self._ends |= {near: far, far: near}
        for end in (near, far):
            selector.register(end, selectors.EVENT_READ)

    def _pass_on(self, selector: selectors.BaseSelector, end: socket.socket) -> None:
        if end not in self._ends:
            return
        try:
            data = end.recv(1 << 16)
            if data:
                self._ends[end].sendall(data)
                return
        except OSError:
            pass
        for one in (end, self._ends[end]):
            selector.unregister(one)
            one.close()
        del self._ends[self._ends.pop(end)]

    def __enter__(self) -> Relay:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._stop.set()
        self._thread.join()
