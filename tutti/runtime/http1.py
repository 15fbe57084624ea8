"""Strict HTTP/1.1 parser (RFC 9112): h11 with additional checks against request smuggling.

A proxy and the server must agree where each request ends; otherwise an attacker can hide one request inside another. So the parser
refuses ambiguous requests with status 400. A request is ambiguous if it has lines that end with LF alone, folded headers, control
characters, a repeated length, or both a length and chunked encoding. The parser refuses a major version other than 1 with 505.
"""

from __future__ import annotations

import re
from importlib.metadata import version

import h11
from h11._receivebuffer import ReceiveBuffer

from tutti.errors import install_remedy

HEAD_BYTES_MAX = 16 * 1024
_IN_LINES = bytes({*range(256)} - {*range(32), 127} | {*b"\t"})  # bytes allowed inside a line
_LENGTHS = re.compile(rb"\ncontent-length:([^\n]*)", re.IGNORECASE)
_CHUNKS = b"transfer-encoding"
_HOST = re.compile(rb"[A-Za-z0-9._~!$&'()*+,;=:%\[\]-]*")
_ABSOLUTE = re.compile(rb"https?://[^/?#@]+(?=[/?]|\Z)", re.IGNORECASE)
# Matches byte literals in the error texts of h11.
_QUOTED = re.compile(r"""(bytearray\()?\bb('(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*")(?(1)\))""", re.DOTALL)
_CRLF = b"\r\n"


class _Buffer(ReceiveBuffer):
    """Receive buffer that accepts only lines ending with CRLF.

    The base class is private to h11. h11 has no public way to check the bytes of a head: its events do not show how lines ended, or
    that a header was repeated. `_check_h11` checks that h11 has the private parts that this class needs.
    """

    def skip_empty_line(self) -> None:
        """Skip an empty line before a request (RFC 9112, 2.2), because some clients send an empty line after a body."""
        if self._data[:2] == _CRLF:
            self._extract(2)

    def maybe_extract_lines(self) -> list[bytearray] | None:
        """Extract and return the lines of a head, or of the trailers after the last chunk. Return None while lines are missing.

        Raises:
            h11.LocalProtocolError: a line is malformed.
        """
        before = len(self)
        lines = super().maybe_extract_lines()
        if lines is None:
            return None
        text = b"\n".join(lines)
        if before - len(self) != len(text) + len(lines) + (3 if lines else 2):
            raise h11.LocalProtocolError("a line ends with LF alone: end each line with CRLF")
        if text.translate(None, _IN_LINES + b"\n"):
            raise h11.LocalProtocolError("a line holds a control character")
        if b"\n " in text or b"\n\t" in text:
            raise h11.LocalProtocolError("a header is folded over several lines: write it on one line")
        lengths = _LENGTHS.findall(text)
        if len(lengths) > 1 or any(b"," in length for length in lengths):
            raise h11.LocalProtocolError("Content-Length is given more than once: give it once")
        return lines

    def maybe_extract_next_line(self) -> bytearray | None:
        """Extract and return the line with the size of a chunk. Return None while the line is incomplete.

        Raises:
            h11.LocalProtocolError: the line contains a control character, or ends with white space.
        """
        line = super().maybe_extract_next_line()
        if line is not None and (line.endswith((b" \r\n", b"\t\r\n")) or line[:-2].translate(None, _IN_LINES)):
            raise h11.LocalProtocolError("the line with the size of a chunk ends with white space, or has a control character")
        return line


def _check_h11(connection: h11.Connection) -> None:
    """Check that the installed h11 uses the receive buffer that `_Buffer` extends.

    Raises:
        ImportError: h11 uses a different buffer.
    """
    buffer = getattr(connection, "_receive_buffer", None)
    parts = ("_data", "_extract", "maybe_extract_lines", "maybe_extract_next_line")
    missing = [name for name in parts if not hasattr(buffer, name)]
    if missing or type(buffer) is not ReceiveBuffer:
        raise ImportError(f"h11 {version('h11')} has another receive buffer (it lacks {missing}): {install_remedy('gateway')}")


_check_h11(h11.Connection(h11.SERVER))


class ServerConnection(h11.Connection):
    """The server's side of a connection.

    After the client has closed its side, `next_event` returns only `NEED_DATA`, so that the server answers the complete requests
    and then closes the connection.
    """

    def __init__(self, head_bytes_max: int | None) -> None:
        """Create a parser that accepts heads of up to `head_bytes_max` bytes. None means `HEAD_BYTES_MAX`."""
        super().__init__(h11.SERVER, head_bytes_max or HEAD_BYTES_MAX)
        self._receive_buffer: _Buffer = _Buffer()

    def receive_data(self, data: bytes) -> None:
        """Add received bytes; `b""` is the end of the stream. Ignore bytes after a request with `Connection: close`."""
        if not data or self.their_state is not h11.MUST_CLOSE:
            super().receive_data(data)

    def next_event(self) -> h11.Event | type[h11.NEED_DATA] | type[h11.PAUSED]:
        """Return the next event of the client.

        Raises:
            h11.RemoteProtocolError: the request is malformed. The attribute `error_status_hint` is the HTTP status of the answer.
        """
        if self.their_state is h11.MUST_CLOSE:
            return h11.NEED_DATA
        if self.their_state is h11.IDLE:
            self._receive_buffer.skip_empty_line()
        try:
            event = super().next_event()
        except h11.RemoteProtocolError as error:
            raise h11.RemoteProtocolError(_QUOTED.sub(r"\2", str(error)), error.error_status_hint) from error
        if isinstance(event, h11.Request):
            return _checked(event)
        return h11.NEED_DATA if isinstance(event, h11.ConnectionClosed) else event


def _checked(request: h11.Request) -> h11.Request:
    """Check a request and return it. If the target is an absolute URL, reduce the target to its path.

    Raises:
        h11.RemoteProtocolError: the request is not HTTP/1, or is ambiguous.
    """
    version = request.http_version.decode()
    headers = list(request.headers)
    names = {name for name, _ in headers}
    if version != "1.0" and b"host" not in names:
        raise h11.RemoteProtocolError("the header Host is missing")
    if not version.startswith("1."):
        raise h11.RemoteProtocolError(f"HTTP/{version} is not supported: use HTTP/1.1", error_status_hint=505)
    if _CHUNKS in names and (b"content-length" in names or version == "1.0"):
        raise h11.RemoteProtocolError(
            "Transfer-Encoding is not allowed together with Content-Length, or in HTTP/1.0: send only Content-Length"
        )
    if any(name == b"host" and not _HOST.fullmatch(value) for name, value in headers):
        raise h11.RemoteProtocolError("the header Host is not HOST or HOST:PORT")
    target = request.target
    if target.startswith(b"/") or request.method == b"CONNECT" or (target == b"*" and request.method == b"OPTIONS"):
        return request
    server = _ABSOLUTE.match(target)
    if server is None:
        raise h11.RemoteProtocolError(f"the target {target[:80].decode()!r} is neither a path nor an HTTP URL")
    path = target[server.end() :]
    return h11.Request(
        method=request.method,
        headers=headers,
        target=path if path.startswith(b"/") else b"/" + path,
        http_version=request.http_version,
    )
