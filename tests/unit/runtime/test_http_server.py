"""Tests of the HTTP server: a client that half-closes gets its answers over TCP and TLS, a disconnect is noticed, a broken request
adds nothing to an answer, and idle connections exclude no client.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
import struct
import threading
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import uvicorn

from tests.support.certificates import certificate
from tutti.errors import ConfigError
from tutti.runtime import http_server
from tutti.runtime.http_server import HALF_CLOSED, UVICORN_SETTINGS, BoundedProtocol, Server
from tutti.runtime.listener import CROWDED, ConnectionLimit, _network

WAIT_S = 60
GET = b"GET / HTTP/1.1\r\nhost: x\r\n\r\n"
POST = b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 5\r\n\r\n"


class Protocol(BoundedProtocol):
    """As that of a port, with all the time of the test."""

    wrong_port = "{spoken} is not spoken here"

    def timeout_s(self) -> float:
        return WAIT_S


class Port:
    """A server in a thread, and what its application saw."""

    def __init__(self, application: Callable[..., Awaitable[None]], most: int, tls: Path | None) -> None:
        self.port_of = socket.create_server(("127.0.0.1", 0))
        self.number = self.port_of.getsockname()[1]
        self.rejected: Counter[str] = Counter()
        Protocol.rejected = self.rejected
        config = uvicorn.Config(
            application, http=Protocol, **UVICORN_SETTINGS, log_level="critical", backlog=100, timeout_keep_alive=WAIT_S
        )
        config.load()
        if tls is not None:
            config.ssl = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            config.ssl.load_cert_chain(tls / "tls.pem", tls / "tls.key")
        self._server = Server(config, most, WAIT_S)
        self._thread = threading.Thread(target=lambda: asyncio.run(self._server.serve(sockets=[self.port_of])))
        self._thread.start()

    def link(self) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self.number), WAIT_S)

    def end(self) -> None:
        self._server.should_exit = self._server.force_exit = True
        self._server.end()
        self._thread.join()
        self.port_of.close()


class Application:
    """Reads a complete request, then does what the test asks."""

    def __init__(self) -> None:
        self.bodies: list[bytes] = []
        self.begun, self.gone = threading.Event(), threading.Event()
        self.act: Callable[[Any, Any, Any], Awaitable[None]] = self.answer
        self.act_early: Callable[[Any, Any, Any], Awaitable[None]] | None = None  # before the body is read

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        self.begun.set()
        if self.act_early is not None:
            return await self.act_early(scope, receive, send)
        body, more = b"", True
        while more:
            message = await receive()
            if message["type"] == "http.disconnect":
                return self.gone.set()
            body, more = body + message["body"], message["more_body"]
        self.bodies.append(body)
        return await self.act(scope, receive, send)

    async def answer(self, _scope: Any, _receive: Any, send: Any) -> None:
        text = b"answer %d\n" % len(self.bodies)
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"%d" % len(text))]})
        await send({"type": "http.response.body", "body": text})

    async def answer_once_it_is_closed(self, scope: Any, receive: Any, send: Any) -> None:
        while not scope["state"][HALF_CLOSED]:
            if self.gone.wait(0):
                return
            await asyncio.sleep(0.005)
        await self.answer(scope, receive, send)

    async def stream(self, scope: Any, receive: Any, send: Any) -> None:
        ended = asyncio.ensure_future(receive())
        await send({"type": "http.response.start", "status": 200, "headers": []})
        count = 0
        while not ended.done():
            count += scope["state"][HALF_CLOSED]
            await send({"type": "http.response.body", "body": b"event %d\n" % count, "more_body": True})
            await asyncio.sleep(0.005)
        self.gone.set()


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("tls")
    certificate(place, "tls")
    return place


@pytest.fixture
def application() -> Application:
    return Application()


@pytest.fixture
def port(application: Application, keys: Path, request: pytest.FixtureRequest) -> Iterator[Port]:
    most, tls = getattr(request, "param", (100, False))
    port = Port(application, most, keys if tls else None)
    yield port
    application.gone.set()
    port.end()


class Client:
    """Closes its side by a word of TLS, by TCP alone, or, in the clear, by that.

    Attributes:
        cut: True if the server closed TCP without closing TLS before: an answer may not be whole.
    """

    cut = False

    def __init__(self, port: Port, kind: str, keys: Path) -> None:
        self.link, self._kind = port.link(), kind
        self._tls: ssl.SSLObject | None = None
        if kind != "clear":
            self._in, self._out = ssl.MemoryBIO(), ssl.MemoryBIO()
            context = ssl.create_default_context(cafile=str(keys / "tls.pem"))
            self._tls = context.wrap_bio(self._in, self._out, server_hostname="127.0.0.1")
            self._do(self._tls.do_handshake)

    def _do(self, act: Callable[[], Any]) -> Any:
        while True:
            try:
                return act()
            except ssl.SSLWantReadError:
                self._flush()
                if not (data := self.link.recv(65_536)):
                    self.cut = True
                    return b""
                self._in.write(data)
            finally:
                self._flush()

    def _flush(self) -> None:
        if data := self._out.read():
            self.link.sendall(data)

    def send(self, data: bytes) -> None:
        if self._tls is None:
            self.link.sendall(data)
        else:
            self._do(lambda: self._tls.write(data))  # type: ignore[union-attr]  # just seen

    def close_its_side(self) -> None:
        if self._kind == "word of tls":
            with contextlib.suppress(ssl.SSLWantReadError):  # the other side's word comes later
                self._tls.unwrap()  # type: ignore[union-attr]  # it has one
            self._flush()
        else:
            self.link.shutdown(socket.SHUT_WR)

    def rest(self) -> bytes:
        """Return everything until the server closes."""
        answer = b""
        while part := self.part():
            answer += part
        return answer

    def part(self) -> bytes:
        if self._tls is None:
            return self.link.recv(65_536)
        with contextlib.suppress(ssl.SSLEOFError, ssl.SSLZeroReturnError):
            found: bytes = self._do(lambda: self._tls.read(65_536))  # type: ignore[union-attr]  # just seen
            return found
        return b""


KINDS = pytest.mark.parametrize(
    ("port", "kind"),
    [((100, False), "clear"), ((100, True), "word of tls"), ((100, True), "tcp alone")],
    indirect=["port"],
    ids=["clear", "tls", "tls-cut"],
)


@pytest.fixture
def client(port: Port, kind: str, keys: Path) -> Iterator[Client]:
    client = Client(port, kind, keys)
    yield client
    client.link.close()


@KINDS
@pytest.mark.parametrize("request_", [GET, POST + b"value", POST.replace(b"1.1", b"1.0") + b"value"])
def test_a_client_that_closes_its_side_gets_its_answer(client: Client, application: Application, request_: bytes) -> None:
    application.act = application.answer_once_it_is_closed
    client.send(request_)
    client.close_its_side()
    answer = client.rest()
    assert answer.startswith(b"HTTP/1.1 200")
    assert answer.endswith(b"\r\n\r\nanswer 1\n")
    assert not client.cut


@KINDS
def test_all_requests_before_the_end_are_answered(client: Client, application: Application) -> None:
    application.act = application.answer_once_it_is_closed
    client.send(GET + POST + b"value" + GET)
    client.close_its_side()
    answer = client.rest()
    assert [answer.count(b"answer %d\n" % number) for number in (1, 2, 3, 4)] == [1, 1, 1, 0]
    assert application.bodies == [b"", b"value", b""]


@KINDS
@pytest.mark.parametrize("begun", [POST + b"val", POST, b"GET / HTTP/1.1\r\nhost"])
def test_a_request_that_is_not_whole_at_the_end_is_refused(client: Client, application: Application, begun: bytes) -> None:
    client.send(begun)
    client.close_its_side()
    answer = client.rest()
    assert answer.startswith(b"HTTP/1.1 400")
    assert answer.count(b"HTTP/1.1") == 1
    assert application.bodies == []


@KINDS
def test_a_connection_without_a_request_ends_with_its_client(client: Client, port: Port) -> None:
    client.send(GET)
    answer = client.part()
    while not answer.endswith(b"answer 1\n"):
        answer += client.part()
    client.close_its_side()
    assert client.rest() == b""
    assert port.rejected == {}


@KINDS
def test_a_stream_goes_to_a_half_closed_client_until_it_disconnects(client: Client, application: Application) -> None:
    application.act = application.stream
    client.send(GET)
    client.close_its_side()
    heard = b""
    while b"event 9\n" not in heard:  # those after the end have numbers
        heard += (part := client.part())
        assert part, "the stream goes on"
    client.link.close()
    assert application.gone.wait(WAIT_S), "writing to it shows that nobody is there"


def test_an_asyncio_without_a_part_that_tls_needs_is_refused() -> None:
    with pytest.raises(
        ConfigError, match=r"lacks _state, .*_on_shutdown_complete of SSLProtocol, which HTTPS needs: use Python 3\.11"
    ):
        http_server._check_tls(asyncio.Protocol())  # type: ignore[arg-type]  # as another release may be


def test_a_reset_ends_a_stream(port: Port, application: Application) -> None:
    application.act = application.stream
    link = port.link()
    link.sendall(GET)
    assert link.recv(1)
    link.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    link.close()
    assert application.gone.wait(WAIT_S)


def test_nothing_is_added_to_an_answer_that_has_begun(port: Port, application: Application) -> None:
    """A caller would read a second one as part of the first, or as the answer to its next request."""

    async def early(_scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"4")]})
        await send({"type": "http.response.body", "body": b"ab", "more_body": True})
        while (await receive())["type"] != "http.disconnect":
            pass

    application.act_early = early
    with port.link() as link:
        link.sendall(b"POST / HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n1\r\na\r\n")
        answer = link.recv(1)
        while not answer.endswith(b"ab"):
            answer += link.recv(100)
        link.sendall(b"no chunk\r\n")
        with contextlib.suppress(ConnectionResetError):
            assert link.recv(100) == b""


def test_bytes_after_the_last_request_lose_no_answer(port: Port, application: Application) -> None:
    application.act = application.answer_once_it_is_closed
    with port.link() as link:
        link.sendall(POST.replace(b"\r\n\r\n", b"\r\nconnection: close\r\n\r\n") + b"value\r\n")
        while not application.bodies:
            time.sleep(0.005)
        link.sendall(b"\r\n")
        link.shutdown(socket.SHUT_WR)
        answer = b""
        while part := link.recv(100):
            answer += part
    assert answer.startswith(b"HTTP/1.1 200")
    assert answer.count(b"HTTP/1.1") == 1


def served(port: Port) -> bytes:
    """Return the answer to a request on a connection of its own."""
    with port.link() as link:
        link.sendall(GET.replace(b"\r\n\r\n", b"\r\nconnection: close\r\n\r\n"))
        answer = b""
        while part := link.recv(65_536):
            answer += part
        return answer


@pytest.mark.parametrize("port", [(5, False)], indirect=True)
@pytest.mark.parametrize("said", [b"", b"GET / HT", POST, POST + b"v", GET], ids=["nothing", "head", "no body", "body", "idle"])
def test_idle_connections_exclude_no_client(port: Port, application: Application, said: bytes) -> None:
    with contextlib.ExitStack() as stack:
        for _ in range(40):
            link = stack.enter_context(port.link())
            link.sendall(said)
            if said == GET:
                assert link.recv(1), "it is answered, and idle from now on"
        for _ in range(10):
            assert b"200 OK" in served(port)
    assert port.rejected[CROWDED] >= 35


@pytest.mark.parametrize("port", [(5, True)], indirect=True)
def test_connections_in_the_middle_of_a_handshake_exclude_no_client(port: Port, application: Application, keys: Path) -> None:
    with contextlib.ExitStack() as stack:
        for _ in range(40):
            stack.enter_context(port.link())
        client = Client(port, "tcp alone", keys)
        client.send(GET)
        assert b"200 OK" in client.part()
        client.link.close()
    assert port.rejected[CROWDED] >= 35


@pytest.mark.parametrize("port", [(2, False)], indirect=True)
def test_a_client_that_awaits_an_answer_keeps_its_connection(port: Port, application: Application) -> None:
    application.act = application.answer_once_it_is_closed
    with port.link() as one, port.link() as other:
        for number, link in enumerate((one, other), start=1):
            link.sendall(GET)
            while len(application.bodies) < number:
                time.sleep(0.005)
        with port.link() as third:
            answer = third.recv(65_536)
            assert answer.startswith(b"HTTP/1.1 503")
            assert b"retry-after: 1\r\n" in answer
            assert third.recv(1) == b""
        assert port.rejected == {CROWDED: 1}
        for link in (one, other):
            link.shutdown(socket.SHUT_WR)
            assert link.recv(65_536).startswith(b"HTTP/1.1 200")


@pytest.mark.parametrize("port", [(1, False)], indirect=True)
def test_a_request_on_a_connection_closed_for_others_is_answered_with_503(port: Port, application: Application) -> None:
    with port.link() as slow:
        slow.sendall(POST + b"v")
        assert application.begun.wait(WAIT_S)
        assert b"200 OK" in served(port)
        answer = slow.recv(65_536)
        assert answer.startswith(b"HTTP/1.1 503")
        assert slow.recv(1) == b""
    assert application.gone.wait(WAIT_S)
    assert application.bodies == [b""], "nothing of it was taken"


class Table:
    """A limit of some connections, and which of them it closed."""

    def __init__(self, most: int) -> None:
        self.closed: list[int] = []
        self.limit = ConnectionLimit(most, Counter())

    def accept(self, number: int, host: str = "192.0.2.1") -> None:
        self.limit.accepted(number, (host, 1), lambda: self.closed.append(number))

    def evict(self) -> int | None:
        """Return the connection that was closed."""
        if not self.limit.evict():
            return None
        number = self.closed[-1]
        self.limit.closed(number)
        return number


def test_a_connection_without_a_request_is_closed_first_then_the_longest_idle_one() -> None:
    table = Table(5)
    for number in range(1, 6):
        assert not table.limit.full
        table.accept(number)
    assert table.limit.full
    table.limit.working(1)
    table.limit.waiting(1, answered=True)
    table.limit.working(2)
    table.limit.waiting(3, answered=True)
    assert [table.evict() for _ in range(5)] == [4, 5, 1, 3, None]
    table.limit.waiting(2, answered=True)
    assert table.evict() == 2
    assert not table.limit.full


def test_a_stranger_pushes_out_his_own_connections() -> None:
    table = Table(100)
    table.accept(1, "192.0.2.1")
    table.accept(2, "192.0.2.2")
    for number in range(3, 6):
        table.accept(number, "192.0.2.3")
    for number in range(6, 8):
        table.accept(number, f"2001:db8:0:1::{number}")
    assert [table.evict() for _ in range(7)] == [3, 4, 6, 1, 2, 5, 7]


def test_one_connection_at_a_time_is_closed_for_others() -> None:
    table = Table(2)
    table.accept(1)
    table.accept(2)
    assert table.limit.evict()
    assert table.limit.evict(), "it is on its way out"
    assert table.closed == [1]
    table.limit.closed(1)
    assert table.evict() == 2


@pytest.mark.parametrize(
    ("host", "network"),
    [
        ("192.0.2.1", "192.0.2.1"),
        ("::ffff:192.0.2.1", "192.0.2.1"),
        ("2001:db8::1", "20010db800000000"),
        ("2001:db8::2", "20010db800000000"),
        ("fe80::1%eth0", "fe80000000000000"),
    ],
)
def test_a_stranger_has_a_network(host: str, network: str) -> None:
    assert _network(host) == network
