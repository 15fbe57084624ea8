"""Tests of the admin port: it serves its pages, answers all other requests with the fitting code, bounds its connections, never
sends a traceback, and names the right port to clients of other protocols.
"""

import asyncio
import contextlib
import json
import socket
import ssl
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import uvicorn
from starlette.datastructures import URL
from starlette.requests import Request

from tests.support.certificates import certificate
from tutti.runtime.http_server import Server
from tutti.runtime.listener import CROWDED
from tutti.security.tokens import Access, change_tokens, digest_of
from tutti_gateway.core import limits
from tutti_gateway.reads.admin.http import AdminProtocol, AdminServer, Page, PageResponse, application
from tutti_gateway.reads.common.authorization import ReadsAuthorizer, SecurityFiles

PAGES: dict[str, Page] = {
    "/healthz": lambda _asked: PageResponse(200, "application/json", b'{"status":"ok"}'),
    "/readyz": lambda _asked: PageResponse(503, "application/json", b'{"state":"joining"}'),
    "/asked": lambda asked: PageResponse(200, "text/plain", repr(sorted(asked.items())).encode(), {"tutti-next": "7"}),
    "/broken": lambda _asked: PageResponse(1 // 0, "", b""),
}


@pytest.fixture
def port() -> Iterator[int]:
    listener = socket.create_server(("127.0.0.1", 0))
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)  # so that a test fills it soon; connections inherit it
    server = AdminServer(listener, PAGES)
    server.start()
    yield listener.getsockname()[1]
    server.stop()
    listener.close()


def talk(port: int, data: bytes, timeout: float = 20) -> bytes:
    """Send bytes, and return everything until the other side closes."""
    with socket.create_connection(("127.0.0.1", port), timeout) as link:
        link.sendall(data)
        answer = b""
        while True:
            try:
                part = link.recv(65536)
            except ConnectionResetError:
                return answer
            if not part:
                return answer
            answer += part


def ask(port: int, method: str, path: str, headers: str = "", body: bytes = b"") -> tuple[int, dict[str, str], bytes]:
    answer = talk(port, f"{method} {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n{headers}\r\n".encode() + body)
    return parse(answer)


def parse(answer: bytes) -> tuple[int, dict[str, str], bytes]:
    head, _, body = answer.partition(b"\r\n\r\n")
    lines = head.decode().split("\r\n")
    headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in lines[1:])}
    assert b"Traceback" not in answer
    return int(lines[0].split()[1]), headers, body


def test_pages(port: int) -> None:
    assert ask(port, "GET", "/healthz")[0::2] == (200, b'{"status":"ok"}')
    assert ask(port, "GET", "/readyz?x=1")[0::2] == (503, b'{"state":"joining"}')
    status, headers, body = ask(port, "HEAD", "/healthz")
    assert (status, headers["content-length"], body) == (200, "15", b"")


def test_queries_and_headers_reach_the_application(port: int) -> None:
    status, headers, body = ask(port, "GET", "/asked?topic=a%2Fb+c&topic=%3Cx%3E&n=&%00=%FF")
    assert (status, headers["tutti-next"]) == (200, "7")
    assert body.decode() == repr([("\0", "\ufffd"), ("n", ""), ("topic", "<x>")])


@pytest.mark.parametrize("path", ["/healthz", "/nothing", "/broken"])
def test_a_browser_runs_nothing_of_others_and_frames_nothing(port: int, path: str) -> None:
    _, headers, _ = ask(port, "GET", path)
    policy = headers["content-security-policy"]
    assert policy.startswith("default-src 'self';")
    assert "unsafe" not in policy
    assert "frame-ancestors 'none'" in policy
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["cache-control"] == "no-store"


@pytest.mark.parametrize(
    ("method", "path", "headers", "body", "status"),
    [
        ("GET", "/nothing", "", b"", 404),
        ("GET", "/healthz/../../etc/passwd", "", b"", 404),
        ("POST", "/healthz", "", b"", 405),
        ("DELETE", "/healthz", "", b"", 405),
        ("BREW", "/healthz", "", b"", 405),
        ("POST", "/healthz", "content-length: 3\r\n", b"abc", 413),
        ("GET", "/healthz", "content-length: 99999999999\r\n", b"abc", 413),
        ("GET", "/healthz", "transfer-encoding: chunked\r\n", b"3\r\nabc\r\n0\r\n\r\n", 413),
        ("GET", "/healthz", "content-length: x\r\n", b"", 400),
        ("GET", "/broken", "", b"", 500),
    ],
)
def test_everything_else_has_its_code(port: int, method: str, path: str, headers: str, body: bytes, status: int) -> None:
    found, answered, answer = ask(port, method, path, headers, body)
    assert found == status
    assert answered["content-type"] == "application/json"
    assert set(json.loads(answer)) == {"error", "message"}
    if status == 405:
        assert "GET" in answered["allow"]
    assert ask(port, "GET", "/healthz")[0] == 200


@pytest.mark.parametrize(
    ("data", "spoken"),
    [
        (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\4\0\0\0\0\0", "gRPC"),
        (b"\xff" + bytes(8) + b"\x7f\x03\x00NULL", "ZeroMQ"),
    ],
)
def test_other_protocols_get_the_right_port(port: int, data: bytes, spoken: str) -> None:
    status, _, body = parse(talk(port, data))
    assert status == 400
    assert spoken in json.loads(body)["message"]
    assert "tutti://HOST:P" in json.loads(body)["message"]


@pytest.mark.parametrize("data", [b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", b"\0" * 100 + b"\r\n\r\n", b"hello\r\n\r\n"])
def test_noise_is_a_bad_request(port: int, data: bytes) -> None:
    with socket.create_connection(("127.0.0.1", port), 10) as link:
        link.sendall(data)
        link.shutdown(socket.SHUT_WR)
        answer = link.recv(65536)
    assert parse(answer)[0] == 400
    assert ask(port, "GET", "/healthz")[0] == 200


@pytest.mark.parametrize(
    ("data", "status"),
    [
        (b"GET /healthz HTTP/1.1\nhost: x\n\n", 400),
        (b"GET /healthz HTTP/1.1\r\nhost: x\r\na: b\r\n c\r\n\r\n", 400),
        (b"GET /healthz HTTP/1.1\r\nhost: x\r\na : b\r\n\r\n", 400),
        (b"GET /healthz HTTP/1.1\r\nhost: x\r\na: b\rc\r\n\r\n", 400),
        (b"GET /healthz HTTP/1.1\r\nhost: x\r\na: b\0c\r\n\r\n", 400),
        (b"GET /healthz HTTP/1.1\r\nhost: x\r\ncontent-length: 0\r\ncontent-length: 0\r\n\r\n", 400),
        (b"GET /healthz HTTP/1.1\r\nhost: x\r\ncontent-length: 5\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n", 400),
        (b"GET /healthz HTTP/1.1\r\nhost: x\r\ncontent-length: -1\r\n\r\n", 400),
        (b"GET healthz HTTP/1.1\r\nhost: x\r\n\r\n", 400),
        (b"GET /healthz HTTP/1.1\r\n\r\n", 400),
        (b"GET /healthz HTTP/9.9\r\nhost: x\r\n\r\n", 505),
        (b"GET http://x/healthz HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n", 200),
        (b"\r\nGET /healthz HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n", 200),
        (b"GET /healthz HTTP/1.0\r\n\r\n", 200),
        (b"CONNECT x:1 HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n", 404),
        (b"OPTIONS * HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n", 404),
    ],
)
def test_requests_are_parsed_as_in_the_rfc(port: int, data: bytes, status: int) -> None:
    """One with a second behind it, which no answer may be for, as its end is not known."""
    hidden = b"GET /readyz HTTP/1.1\r\nhost: x\r\n\r\n"
    answer = talk(port, data + hidden)
    assert parse(answer)[0] == status
    assert answer.count(b"HTTP/1.1 ") == 1


def test_a_client_that_closes_its_side_gets_its_answer() -> None:
    wanted, asked = threading.Event(), threading.Event()

    def slow(_asked: Any) -> PageResponse:
        asked.set()
        assert wanted.wait(60)
        return PageResponse(200, "text/plain", b"late")

    listener = socket.create_server(("127.0.0.1", 0))
    server = AdminServer(listener, {**PAGES, "/slow": slow})
    server.start()
    port = listener.getsockname()[1]
    with socket.create_connection(("127.0.0.1", port), 60) as link:
        link.sendall(b"GET /slow HTTP/1.1\r\nhost: x\r\n\r\n")
        link.shutdown(socket.SHUT_WR)
        assert asked.wait(60)
        assert ask(port, "GET", "/healthz")[0] == 200  # so by now the server has seen the end of the first one
        wanted.set()
        answer = b""
        while part := link.recv(65_536):
            answer += part
    assert parse(answer)[0::2] == (200, b"late")
    server.stop()
    listener.close()


@pytest.mark.parametrize("begun", [b"GET /", b"GET /healthz HTTP/1.1\r\nx: "])
def test_headers_without_end_are_too_long(port: int, begun: bytes) -> None:
    assert parse(talk(port, begun + b"y" * limits.HTTP_HEADER_BYTES_MAX))[0] == 431


def test_several_requests_on_one_connection(port: int) -> None:
    request = b"GET /healthz HTTP/1.1\r\nhost: x\r\n\r\n"
    last = b"GET /healthz HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n"
    assert talk(port, request * 5 + last).count(b"200 OK") == 6


def test_a_silent_or_slow_client_is_disconnected(port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "HTTP_REQUEST_US_MAX", 300_000)
    began = time.monotonic()
    assert talk(port, b"") == b""
    assert talk(port, b"GET /healthz HTTP/1.1\r\nx: ") == b""
    assert time.monotonic() - began < 10


def test_a_client_that_does_not_read_is_disconnected(port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Unread answers fill the socket, and the connection is still closed at its time."""
    monkeypatch.setattr(limits, "HTTP_REQUEST_US_MAX", 500_000)
    with socket.socket() as link:
        link.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
        link.connect(("127.0.0.1", port))
        link.settimeout(10)
        with pytest.raises((ConnectionError, TimeoutError)) as cut:  # noqa: PT012 - which send meets the cut is not known
            while True:
                link.sendall(b"GET /healthz HTTP/1.1\r\nhost: x\r\n\r\n" * 1000)
        assert not isinstance(cut.value, TimeoutError)


@pytest.fixture
def small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Iterator[tuple[int, str]]:
    """A port that takes three connections, in the clear or with the certificate that is named beside."""
    monkeypatch.setattr(limits, "HTTP_CONNECTIONS_MAX", 3)
    monkeypatch.setattr(limits, "HTTP_REQUEST_US_MAX", 60_000_000)
    monkeypatch.setattr(AdminProtocol, "rejected", Counter[str]())
    certificate(tmp_path, "tls")
    files = str(tmp_path / "tls.pem"), str(tmp_path / "tls.key")
    listener = socket.create_server(("127.0.0.1", 0))
    server = AdminServer(listener, PAGES, tls=files if request.param else None)
    server.start()
    yield listener.getsockname()[1], files[0] if request.param else ""
    server.stop()
    listener.close()


@pytest.mark.parametrize("small", [False, True], indirect=True, ids=["clear", "tls"])
def test_a_client_gets_in_while_strangers_hold_all_connections(small: tuple[int, str]) -> None:
    """Also with silent connections, and during the handshake."""
    port, trusted = small
    with contextlib.ExitStack() as stack:
        for _ in range(10):
            stack.enter_context(socket.create_connection(("127.0.0.1", port), 20))
        plain = stack.enter_context(socket.create_connection(("127.0.0.1", port), 20))
        link = ssl.create_default_context(cafile=trusted).wrap_socket(plain, server_hostname="127.0.0.1") if trusted else plain
        link.sendall(b"GET /healthz HTTP/1.1\r\nhost: x\r\n\r\n")
        assert b"200 OK" in link.recv(65536)
        link.close()
    assert AdminProtocol.rejected[CROWDED] >= 8


def test_the_server_wakes_only_for_work(monkeypatch: pytest.MonkeyPatch) -> None:
    timers: list[Any] = []

    async def serve() -> None:
        server = Server(uvicorn.Config(lambda: None), 1, 1)
        loop = asyncio.get_running_loop()
        call_at = loop.call_at

        def spy(when: float, *given: Any, **more: Any) -> asyncio.TimerHandle:
            timers.append(given)
            return call_at(when, *given, **more)

        monkeypatch.setattr(loop, "call_at", spy)
        working = asyncio.create_task(server.main_loop())
        for _ in range(100):
            await asyncio.sleep(0)
        assert not working.done()
        teller = threading.Thread(target=server.end)
        teller.start()
        await working
        teller.join()

    asyncio.run(serve())
    assert timers == []


def test_a_server_stopped_before_its_start_ends() -> None:
    listener = socket.create_server(("127.0.0.1", 0))
    server = Server(uvicorn.Config(lambda: None, lifespan="off", log_config=None), 1, 1)
    server.end()
    asyncio.run(server.serve(sockets=[listener]))
    server.end()


async def _status(app: Any, path: str, host: bytes) -> int:
    """That of one request, as a server hands it over that lets each host pass."""
    told: list[Any] = []

    async def receive() -> dict[str, Any]:
        return {"type": "http.request"}

    async def send(message: Any) -> None:
        told.append(message)

    await app({"type": "http", "method": "GET", "path": path, "query_string": b"", "headers": [(b"host", host)]}, receive, send)
    return int(told[0]["status"])


@pytest.mark.parametrize("host", [b"x", b"x/console/y?", b"x/healthz?", b"x/healthz#", b"x/metrics?"])
def test_the_host_header_opens_no_page(tmp_path: Path, host: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    """As with releases of Starlette that make an address of any host."""
    tokens = tmp_path / "tokens.toml"
    change_tokens(tokens, lambda known: known.update(one=Access("one", digest_of("one"))))
    monkeypatch.setattr(Request, "url", property(lambda request: URL(f"http://{request.headers['host']}{request.scope['path']}")))
    app = application(
        PAGES | {"/console/y": PAGES["/asked"]}, ReadsAuthorizer(SecurityFiles(tokens=str(tokens))), open_metrics=True
    )
    statuses = [asyncio.run(_status(app, path, host)) for path in ("/asked", "/healthz", "/console/y")]
    assert statuses == [401, 200, 200]
