"""Processes of the HTTP connector, and requests to them over real connections."""

from __future__ import annotations

import http.client
import itertools
import json
import signal
import ssl
import subprocess
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple, Self
from urllib.parse import urlsplit

from tutti.runtime.child_processes import end_with_this_process

WAIT_S = 60.0
JSON, NDJSON, ARROW = "application/json", "application/x-ndjson", "application/vnd.apache.arrow.stream"
_numbers = itertools.count(1)


class Answer(NamedTuple):
    """The status, headers and body of an answer."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        """As JSON."""
        return json.loads(self.body)

    @property
    def lines(self) -> list[Any]:
        """As lines of JSON."""
        return [json.loads(line) for line in self.body.splitlines()]


class Front:
    """One process, as a user starts it."""

    def __init__(self, root: Path, url: str, *, name: str = "web", top: str = "", before: str = "") -> None:
        """Write its configuration; `top` is more of it, `before` Python that runs first in its process."""
        self.file = root / f"http-{next(_numbers)}.toml"
        self.file.write_text(f'name = "{name}"\ngateways = "{url}"\nlisten = "127.0.0.1:0"\n{top}\n')
        self.log = self.file.with_suffix(".log")
        self.process: subprocess.Popen[str] | None = None
        self.url = ""
        self._before = before
        self.trusted: ssl.SSLContext | None = None  # by whom a certificate has to be signed

    def start(self, *, wait: bool = True) -> Self:
        """Start it and wait until it says that it is there."""
        command = [sys.executable, "-c", f"{self._before}\nfrom tutti_gateway.cli.main import main\nraise SystemExit(main())"]
        with self.log.open("a") as log:
            self.process = subprocess.Popen(
                [*command, "connect", "http", "--config", str(self.file)],
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                preexec_fn=end_with_this_process(signal.SIGKILL),  # noqa: PLW1509 - it calls prctl(2) alone
            )
        if wait:
            assert self.process.stdout is not None
            line = self.process.stdout.readline()
            assert line, self.told()
            self.url = json.loads(line)["url"]
        return self

    @property
    def port(self) -> int:
        """Where it listens."""
        return urlsplit(self.url).port or 0

    def told(self) -> str:
        """Return its standard error."""
        return self.log.read_text()

    def end(self, number: int = signal.SIGTERM) -> int:
        """End it; its exit code."""
        assert self.process is not None
        if self.process.poll() is None:
            self.process.send_signal(number)
        try:
            return self.process.wait(WAIT_S)
        finally:
            if self.process.stdout is not None:
                self.process.stdout.close()

    def __enter__(self) -> Self:
        """Start it."""
        return self.start()

    def __exit__(self, *_: object) -> None:
        """End it, however it is."""
        self.end(signal.SIGKILL)

    def ask(self, method: str, path: str, body: bytes | Iterable[bytes] | None = None, **headers: str) -> Answer:
        """Send one request on a connection of its own; names of headers have `_` in place of `-`."""
        link = self.link()
        try:
            link.request(method, path, body, {name.replace("_", "-"): value for name, value in headers.items()})
            answer = link.getresponse()
            return Answer(answer.status, {name.lower(): value for name, value in answer.getheaders()}, answer.read())
        finally:
            link.close()

    def link(self) -> http.client.HTTPConnection:
        """A connection."""
        if self.trusted is not None:
            return http.client.HTTPSConnection("127.0.0.1", self.port, timeout=WAIT_S, context=self.trusted)
        return http.client.HTTPConnection("127.0.0.1", self.port, timeout=WAIT_S)

    def post(self, topic: str, values: Iterable[object], query: str = "", **headers: str) -> Answer:
        """Post values, as text."""
        body = json.dumps([{"value": str(value)} for value in values]).encode()
        return self.ask("POST", f"/v1/topics/{topic}/records{query}", body, content_type=JSON, **headers)

    def post_once(self, topic: str, producer: str, first: int, values: Iterable[object], query: str = "") -> Answer:
        """The same under a sequence."""
        return self.post(topic, values, query, tutti_producer=producer, tutti_sequence=str(first))

    def get(self, path: str, **headers: str) -> Answer:
        """Ask for something."""
        return self.ask("GET", path, None, **headers)

    def measured(self, **headers: str) -> dict[str, float]:
        """Its metrics: "family{labels}" -> value."""
        lines = self.get("/metrics", **headers).body.decode().splitlines()
        return {name: float(value) for name, value in (line.rsplit(" ", 1) for line in lines if not line.startswith("#"))}


def events(link: http.client.HTTPResponse) -> Iterator[dict[str, str]]:
    """Server-sent events as they come: field -> value; comments under the empty name."""
    event: dict[str, str] = {}
    while line := link.readline():
        text = line.decode().rstrip("\n")
        if not text:
            yield event
            event = {}
            continue
        name, _, value = text.partition(": ")
        event[name] = value
