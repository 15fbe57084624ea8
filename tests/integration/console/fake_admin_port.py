"""A fake admin port: the real files of the console, and any answers that a test sets, also impossible ones."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Self
from urllib.parse import parse_qs, urlsplit

from tutti_gateway.reads.admin import assets
from tutti_gateway.reads.admin.history import FIELDS

EVIL = '<img src=x onerror="window.hacked=1"><script>window.hacked=1</script>\'"&{{7*7}}\u202e'
NOW_US = 1_795_000_000_000_000
Asked = Mapping[str, list[str]]


class Stub:
    """Listens at `port`. If `token` is set, every request needs it; `seen` has the headers of each request."""

    def __init__(self, answers: Mapping[str, Callable[[Asked], object]], token: str = "") -> None:
        """Answer `/v1/NAME` with what `answers` give, as JSON, or as lines where that is a list of dicts under "lines"."""
        files = assets.table()
        self.seen: list[dict[str, str]] = []
        seen = self.seen

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            disable_nagle_algorithm = True  # head and body are written apart: 40 ms an answer

            def do_GET(self) -> None:
                parts = urlsplit(self.path)
                if parts.path in files:
                    status, kind, body, _ = files[parts.path]({})
                    self.answer(status, kind, body)
                    return
                seen.append({name.lower(): value for name, value in self.headers.items()})
                if token and self.headers.get("Authorization") != f"Bearer {token}":
                    self.answer(401, "application/json", b'{"error":"Unauthorized","message":"a token is wanted"}')
                    return
                found = answers[parts.path.removeprefix("/v1/")](parse_qs(parts.query))
                if isinstance(found, list):
                    lines = b"".join(json.dumps(line).encode() + b"\n" for line in found)
                    self.answer(200, "application/x-ndjson", lines, first=0, next=len(found), start=0, frontier=len(found))
                else:
                    self.answer(200, "application/json", json.dumps(found).encode())

            def answer(self, status: int, kind: str, body: bytes, **about: int) -> None:
                self.send_response(status)
                self.send_header("content-type", kind)
                self.send_header("content-length", str(len(body)))
                self.send_header("content-security-policy", "default-src 'self'")
                for name, offset in about.items():
                    self.send_header(f"tutti-{name}", str(offset))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}/"
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)

    def __enter__(self) -> Self:
        """Serve."""
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        """Serve no more."""
        self._server.shutdown()
        self._server.server_close()


def hostile() -> dict[str, Callable[[Asked], object]]:
    """Answers in which every text is an attack."""
    member: dict[str, object] = dict.fromkeys(("name", "address", "state", "reason"), EVIL)
    member |= {
        "number": 1,
        "voter": True,
        "coordinator": True,
        "age": 1,
        "frontier": 1,
        "lag": 0,
        "heard_us": 0,
        "round_trip_us": 5,
    }
    query: dict[str, object] = dict.fromkeys(("name", "run", "label", "state", "trouble"), EVIL)
    query |= {"topics": [EVIL], "offset": 1, "lag_records": 2, "lag_ms": 3, "since_us": 1, "seen_us": NOW_US}
    status: dict[str, object] = {
        "gateway": f"{EVIL} itself",
        "group": EVIL,
        "state": "minority",
        "reason": EVIL,
        "view": {"id": 65537, "text": EVIL, "coordinator": EVIL, "members": [EVIL]},
        "members": [member],
        "frontier": 1,
        "start": 0,
        "lag": {EVIL: 1},
        "silent": [EVIL],
        "queries": [query],
        "undecided": {"frames": 1, "bytes": 2},
        "disk": {"failed": EVIL},
        "retention": {"bytes": 1, "time_us": 2, "keep_for": {EVIL: 3}, "held_bytes": 4, "reason": EVIL},
        "lanes": [{"lane": EVIL, "halted": EVIL}],
    }
    change: dict[str, object] = dict.fromkeys(("state", "reason", "view_text", "coordinator"), EVIL)
    change |= {"time_us": NOW_US, "view": 1, "members": [EVIL], "silent": [EVIL], "pid": 1}
    topic = {"name": EVIL, "records": 1, "bytes": 2, "first_offset": 0, "last_offset": 1, "first_time_us": 1, "last_time_us": 2}
    record: dict[str, object] = dict.fromkeys(("topic", "key", "timestamp", "gateway", "producer"), EVIL)
    record |= {"value": json.dumps({EVIL: EVIL}), "sequence": 1, "view": 1, "tick": 1, "headers": [{"key": EVIL, "value": EVIL}]}
    point = [NOW_US, 1_000_000, *[1] * (len(FIELDS) - 2)]
    return {
        "status": lambda _: status,
        "history": lambda _: {"now_us": NOW_US, "fields": FIELDS, "points": [point], "changes": [change]},
        "gateways": lambda _: {EVIL: "javascript:window.hacked=1"},
        "topics": lambda _: {"total": 1, "topics": [topic]},
        "readers": lambda _: {"total": 1, "readers": [{"name": EVIL, "offset": 1, "lag_records": 1}]},
        "records": lambda _: [{**record, "offset": 0}, {**record, "offset": 1, "value": None, "value_base64": EVIL, "key": None}],
    }
