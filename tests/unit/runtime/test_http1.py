"""Tests of the HTTP/1.1 parser: a request is accepted only if every reader of RFC 9112 sees the same request in the same bytes."""

from __future__ import annotations

from typing import Any

import h11
import pytest

from tutti.runtime import http1
from tutti.runtime.http1 import ServerConnection

HOST = b"host: x\r\n"
POST = b"POST / HTTP/1.1\r\n" + HOST
CHUNKED = POST + b"transfer-encoding: chunked\r\n\r\n"


def events(data: bytes) -> list[Any]:
    """Return all events of bytes after which the client closes its side."""
    connection = ServerConnection(16_384)
    connection.receive_data(data)
    connection.receive_data(b"")
    found: list[Any] = []
    while (event := connection.next_event()) not in (h11.NEED_DATA, h11.PAUSED):
        found.append(event)
    return found


@pytest.mark.parametrize(
    ("data", "status"),
    [
        (b"GET / HTTP/1.1\nhost: x\n\n", 400),
        (b"GET / HTTP/1.1\nhost: x\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nhost: x\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nhost: x\r\n\n", 400),
        (b"\nGET / HTTP/1.1\r\nhost: x\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\n" + HOST + b"a: b\r\n c\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\n" + HOST + b"a: b\r\n\tc: d\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\n a: b\r\n" + HOST + b"\r\n", 400),
        (b"GET / HTTP/1.1\r\n" + HOST + b"a: b\rc: d\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\n" + HOST + b"a: b\r\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\n" + HOST + b"a: \0b\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\n" + HOST + b"a: b\x0bc\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\n" + HOST + b"a: b\x7f\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\n" + HOST + b"a : b\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\n" + HOST + b"nothing\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\n" + HOST + b": b\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\n\r\n", 400),
        (b"GET / HTTP/1.2\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\n" + HOST * 2 + b"\r\n", 400),
        (b"GET / HTTP/1.1\r\nhost: a/b\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nhost: a b\r\n\r\n", 400),
        (b"GET /\r\n" + HOST + b"\r\n", 400),
        (b"GET / http/1.1\r\n" + HOST + b"\r\n", 400),
        (b"GET / HTTP/1.10\r\n" + HOST + b"\r\n", 400),
        (b"GET  / HTTP/1.1\r\n" + HOST + b"\r\n", 400),
        (b"GET / a HTTP/1.1\r\n" + HOST + b"\r\n", 400),
        (b"GET / HTTP/9.9\r\n" + HOST + b"\r\n", 505),
        (b"GET / HTTP/2.0\r\n" + HOST + b"\r\n", 505),
        (b"GET / HTTP/0.9\r\n" + HOST + b"\r\n", 505),
        (b"GET nothing HTTP/1.1\r\n" + HOST + b"\r\n", 400),
        (b"GET * HTTP/1.1\r\n" + HOST + b"\r\n", 400),
        (b"GET http:///a HTTP/1.1\r\n" + HOST + b"\r\n", 400),
        (b"GET http://a@b/c HTTP/1.1\r\n" + HOST + b"\r\n", 400),
        (b"GET file://a/b HTTP/1.1\r\n" + HOST + b"\r\n", 400),
        (POST + b"content-length: 1\r\ncontent-length: 2\r\n\r\nab", 400),
        (POST + b"content-length: 1\r\nContent-Length: 1\r\n\r\na", 400),
        (POST + b"content-length: 1, 1\r\n\r\na", 400),
        (POST + b"content-length: -1\r\n\r\n", 400),
        (POST + b"content-length: +1\r\n\r\na", 400),
        (POST + b"content-length: 0x1\r\n\r\na", 400),
        (POST + b"content-length: 1.0\r\n\r\na", 400),
        (POST + b"content-length:\r\n\r\n", 400),
        (POST + b"content-length: " + b"9" * 30 + b"\r\n\r\n", 400),
        (POST + b"content-length: 1\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n", 400),
        (POST + b"transfer-encoding: chunked\r\ncontent-length: 5\r\n\r\n0\r\n\r\n", 400),
        (b"POST / HTTP/1.0\r\n" + HOST + b"transfer-encoding: chunked\r\n\r\n0\r\n\r\n", 400),
        (POST + b"transfer-encoding: chunked, chunked\r\n\r\n0\r\n\r\n", 501),
        (POST + b"transfer-encoding: gzip, chunked\r\n\r\n0\r\n\r\n", 501),
        (POST + b"transfer-encoding: identity\r\n\r\n", 501),
        (POST + b"transfer-encoding: chunked\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n", 501),
        (POST + b"transfer-encoding: \x0bchunked\r\n\r\n0\r\n\r\n", 400),
        (CHUNKED + b"1\nx\r\n0\r\n\r\n", 400),
        (CHUNKED + b"1\r\nx\n0\r\n\r\n", 400),
        (CHUNKED + b"1\r\nxyz\r\n0\r\n\r\n", 400),
        (CHUNKED + b"1 \r\nx\r\n0\r\n\r\n", 400),
        (CHUNKED + b"0x1\r\nx\r\n0\r\n\r\n", 400),
        (CHUNKED + b"-1\r\nx\r\n0\r\n\r\n", 400),
        (CHUNKED + b"+1\r\nx\r\n0\r\n\r\n", 400),
        (CHUNKED + b"f" * 21 + b"\r\nx\r\n0\r\n\r\n", 400),
        (CHUNKED + b"1;a\rb\r\nx\r\n0\r\n\r\n", 400),
        (CHUNKED + b"1;a\nb\r\nx\r\n0\r\n\r\n", 400),
        (CHUNKED + b"1;\0\r\nx\r\n0\r\n\r\n", 400),
        (CHUNKED + b"1\r\nx\r\n0\r\n\nGET / HTTP/1.1\r\n\r\n", 400),
        (CHUNKED + b"1\r\nx\r\n0\r\na: b\n\r\n", 400),
        (CHUNKED + b"1\r\nx\r\n0\r\na: b\r\n c\r\n\r\n", 400),
        (CHUNKED + b"1\r\nx\r\n", 400),
        (POST + b"content-length: 5\r\n\r\nab", 400),
        (b"GET / HT", 400),
    ],
)
def test_ambiguous_requests_are_refused(data: bytes, status: int) -> None:
    with pytest.raises(h11.RemoteProtocolError) as error:
        events(data)
    assert error.value.error_status_hint == status


@pytest.mark.parametrize(
    ("data", "target", "body"),
    [
        (b"GET /a?b=c HTTP/1.1\r\n" + HOST + b"\r\n", b"/a?b=c", b""),
        (b"GET /a HTTP/1.0\r\n\r\n", b"/a", b""),
        (b"GET /a HTTP/1.2\r\n" + HOST + b"\r\n", b"/a", b""),
        (b"\r\nGET /a HTTP/1.1\r\n" + HOST + b"\r\n", b"/a", b""),
        (b"GET http://h:1/a?b HTTP/1.1\r\n" + HOST + b"\r\n", b"/a?b", b""),
        (b"GET HTTPS://[::1]:1?b HTTP/1.1\r\n" + HOST + b"\r\n", b"/?b", b""),
        (b"GET http://h HTTP/1.1\r\n" + HOST + b"\r\n", b"/", b""),
        (b"GET / HTTP/1.1\r\nhost: [::1]:7403\r\n\r\n", b"/", b""),
        (b"GET / HTTP/1.1\r\nhost:\r\n\r\n", b"/", b""),
        (b"OPTIONS * HTTP/1.1\r\n" + HOST + b"\r\n", b"*", b""),
        (b"GET / HTTP/1.1\r\n" + HOST + b"a:\t b \tc\xe9 \r\n\r\n", b"/", b""),
        (POST + b"content-length: 3\r\n\r\na\nb", b"/", b"a\nb"),
        (CHUNKED + b"2\r\n\r\n\r\n0A;a=b;c\r\n0123456789\r\n00\r\na: b\r\n\r\n", b"/", b"\r\n0123456789"),
    ],
)
def test_requests_that_the_rfc_allows_are_accepted(data: bytes, target: bytes, body: bytes) -> None:
    request, *rest = events(data)
    assert request.target == target
    assert b"".join(bytes(event.data) for event in rest if isinstance(event, h11.Data)) == body
    assert isinstance(rest[-1], h11.EndOfMessage)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"GET / HTTP/1.1\r\nHost : x\r\n\r\n", "illegal header line: 'Host : x'"),
        (b"GET / HTTP/1.1\r\n(it's) : x\r\n\r\n", r'''illegal header line: "(it\'s) : x"'''),
        (b"GET / a HTTP/1.1\r\n" + HOST + b"\r\n", "illegal request line: 'GET / a HTTP/1.1'"),
        (CHUNKED + b"1\r\nxyz\r\n", "malformed chunk footer: 'yz' (expected '\\r\\n')"),
        (CHUNKED + b"(b'1')\r\n", r'''illegal chunk header: "(b\'1\')\r\n"'''),
    ],
)
def test_a_line_is_quoted_as_the_text_that_it_is(data: bytes, message: str) -> None:
    with pytest.raises(h11.RemoteProtocolError) as error:
        events(data)
    assert str(error.value) == message


def test_bytes_after_the_last_request_are_ignored() -> None:
    """Some clients end a body with a line end that they do not count."""
    connection = ServerConnection(16_384)
    connection.receive_data(POST + b"connection: close\r\ncontent-length: 1\r\n\r\na\r\n")
    assert [type(connection.next_event()) for _ in range(3)] == [h11.Request, h11.Data, h11.EndOfMessage]
    connection.receive_data(b"\r\n" * 1000)
    assert connection.trailing_data[0] == b"\r\n", "it is not kept"
    connection.receive_data(b"")
    assert connection.next_event() is h11.NEED_DATA


def test_a_head_is_judged_alike_however_it_arrives() -> None:
    connection = ServerConnection(16_384)
    for byte in b"GET /a HTTP/1.1\r\nhost: x\r\na: b\n\r":
        connection.receive_data(bytes([byte]))
        assert connection.next_event() is h11.NEED_DATA
    connection.receive_data(b"\n")
    with pytest.raises(h11.RemoteProtocolError, match="LF alone"):
        connection.next_event()


def test_an_h11_with_another_buffer_is_refused() -> None:
    connection = h11.Connection(h11.SERVER)
    http1._check_h11(connection)
    connection._receive_buffer = bytearray()  # type: ignore[assignment]  # as another release may
    with pytest.raises(ImportError, match=r"lacks \['_data', '_extract', .*\]\): run pip install"):
        http1._check_h11(connection)
