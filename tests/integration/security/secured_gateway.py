"""A gateway with keys, tokens and a certificate, the credentials of its clients, and a proxy that records the traffic."""

from __future__ import annotations

import contextlib
import select
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

from tests.certificates import certificate
from tests.faults.gateways import GatewayProcess, Seat
from tests.ports import free_base
from tutti import Credentials
from tutti.security.tokens import Access, change_tokens, digest_of, new_token
from tutti_gateway.transport.keys import generate

#: token -> what it may do.
RIGHTS = {
    "feed": Access("feed", produce=("flights*",)),
    "reader": Access("reader", read=("flights*",)),
    "all": Access("all", produce=("*",), read=("*",)),
    "ops": Access("ops", admin=True),
    "late": Access("late", produce=("*",), read=("*",), admin=True, expires_us=1),
    "jfk": Access("jfk", produce=("*",), producers=("jfk-*",)),
}


class House:
    """Files of a group in one directory, and tokens by name."""

    def __init__(self, place: Path, gateways: tuple[str, ...] = ("g1",)) -> None:
        self.place = place
        generate(place, gateways)
        certificate(place, "tls")
        self.tokens = {name: new_token() for name in RIGHTS}
        self.file = place / "tokens.toml"
        accesses = {name: access._replace(sha256=digest_of(self.tokens[name])) for name, access in RIGHTS.items()}
        change_tokens(self.file, lambda known: known.update(accesses))

    def security(self, name: str = "g1", more: str = "") -> str:
        """Return the security part of a gateway's configuration."""
        return (
            f'[security]\nsecret_key = "{self.place}/{name}.secret"\npublic_keys = "{self.place}/group.keys"\n'
            f'tokens = "{self.file}"\ntls_certificate = "{self.place}/tls.pem"\ntls_key = "{self.place}/tls.key"\n{more}'
        )

    def credentials(self, name: str) -> Credentials:
        """Return the credentials with a token."""
        return Credentials(self.tokens[name], self.place / "group.keys", self.place / "tls.pem")

    def client_file(self, name: str) -> Path:
        """The same as a file."""
        path = self.place / f"{name}.client"
        if not path.exists():
            pem, keys = (self.place / "tls.pem").read_text(), (self.place / "group.keys").read_text()
            path.touch(0o600)
            path.write_text(f"token = \"{self.tokens[name]}\"\ncertificates = '''{pem}'''\n{keys}")
        return path

    def gateway(self, name: str = "g1", more: str = "", seat: Seat | None = None) -> GatewayProcess:
        """A gateway of it, not started."""
        return GatewayProcess(self.place, name, self.security(name, more), seat or Seat("127.0.0.1", free_base()))


class Wire:
    """Passes on what goes between callers and a port, and keeps it.

    Attributes:
        heard: by connection, what went to the port and what came back.
    """

    def __init__(self, port: int) -> None:
        self._to = port
        self._server = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._server.getsockname()[1])
        self.heard: list[tuple[bytearray, bytearray]] = []
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                threading.Thread(target=self._pass, args=(self._server.accept()[0],), daemon=True).start()

    def _pass(self, caller: socket.socket) -> None:
        heard = bytearray(), bytearray()
        self.heard.append(heard)
        with caller, socket.create_connection(("127.0.0.1", self._to)) as gateway, contextlib.suppress(OSError):
            while True:
                for one in select.select([caller, gateway], [], [])[0]:
                    data = one.recv(1 << 16)
                    if not data:
                        return
                    heard[one is gateway].extend(data)
                    (caller if one is gateway else gateway).sendall(data)

    def all(self) -> bytes:
        """Return all recorded traffic."""
        return b"".join(bytes(to) + bytes(back) for to, back in self.heard)

    def close(self) -> None:
        """Accept no more connections."""
        self._server.close()


@contextlib.contextmanager
def wire(port: int) -> Iterator[Wire]:
    """Listen before a port."""
    made = Wire(port)
    try:
        yield made
    finally:
        made.close()
