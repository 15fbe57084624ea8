"""Tests of the examples with one gateway: each runs as its README says, and its records are in the log once and can be read."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.gateway_process import GatewayProcess
from tests.support.ports import free_port
from tutti.errors import install_remedy
from tutti.reader import Reader

pytestmark = pytest.mark.timeout(300)
ROOT = Path(__file__).resolve().parents[3]
ORDERS = ROOT / "examples/orders.jsonl"
WAIT_S = 120.0


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatewayProcess]:
    """One for all examples."""
    with GatewayProcess(tmp_path_factory.mktemp("gateway")) as gateway:
        yield gateway


def environment(gateway: GatewayProcess) -> dict[str, str]:
    """Return the environment that the README requires: the address, and the Python of the environment on PATH."""
    return {**os.environ, "TUTTI_URL": gateway.url, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}


def run(gateway: GatewayProcess, *command: str) -> str:
    """Run one command of the README to its end, and return its output."""
    done = subprocess.run(command, cwd=ROOT, env=environment(gateway), capture_output=True, text=True, timeout=WAIT_S, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def values(gateway: GatewayProcess, topic: str) -> list[bytes]:
    """Return the values of a topic in the log."""
    with Reader(gateway.url, topics=[topic], start=0) as reader:
        return [record.value or b"" for record in reader.records()]


def test_a_file_is_sent_once_and_resumes(gateway: GatewayProcess, tmp_path: Path) -> None:
    file = tmp_path / "growing.jsonl"
    lines = ORDERS.read_bytes().splitlines(keepends=True)
    send = ["python", "examples/python/send.py", str(file), "lines"]
    file.write_bytes(b"".join(lines[:5]) + lines[5][:10])  # the sixth is still being written
    assert run(gateway, *send) == "sent 5 lines\n"
    file.write_bytes(b"".join(lines))
    assert run(gateway, *send) == f"sent {len(lines) - 5} lines\n"
    assert run(gateway, *send) == "sent 0 lines\n"
    assert values(gateway, "lines") == [line.rstrip(b"\n") for line in lines]

    printed = run(gateway, "python", "examples/python/read.py", "lines")
    assert [line.split(" (")[0].split(" ", 1)[1] for line in printed.splitlines()] == [line.decode().strip() for line in lines]
    assert run(gateway, "python", "examples/python/read.py", "lines") == "", "a named reader goes on behind what it read"


@pytest.mark.parametrize(
    ("program", "code", "said"),
    [
        (["send.py", str(ORDERS), "orders"], 3, "127.0.0.1:1: connection refused"),
        (["send.py", "nosuch.jsonl", "orders"], 1, "No such file or directory: 'nosuch.jsonl'"),
        (["send.py", str(ORDERS), "or ders"], 2, "contains ' '"),
        (["read.py", "orders"], 3, "127.0.0.1:1: connection refused"),
    ],
)
def test_a_mistake_ends_with_one_line_and_the_exit_code_of_a_command(program: list[str], code: int, said: str) -> None:
    command = [sys.executable, f"examples/python/{program[0]}", *program[1:]]
    environment = os.environ | {"TUTTI_URL": "tutti://127.0.0.1:1"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=WAIT_S, check=False)
    assert (done.returncode, done.stdout) == (code, "")
    # The client may log the outage before the error.
    last = done.stderr.splitlines()[-1]
    assert last.startswith("error: ")
    assert said in last
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("extra", "program", "package"), [("web", "app", "fastapi"), ("web", "feed", "aiohttp"), ("spark", "totals", "pyspark")]
)
def test_an_example_names_the_extra_that_is_missing(extra: str, program: str, package: str) -> None:
    hidden = f"sys.modules.update(dict.fromkeys([{package!r}, '{package}.errors']))"
    code = f"import sys; {hidden}; sys.path.insert(0, 'examples/{extra}'); import {program}"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=WAIT_S, check=False)
    assert (done.returncode, done.stdout) == (1, "")
    assert re.fullmatch(
        rf"this example needs {package}(\.errors)?, which is not installed: {re.escape(install_remedy(extra))}\n", done.stderr
    )


UVICORN = ("uvicorn", "--app-dir", "examples/web", "app:app", "--port")
AIOHTTP = ("python", "-u", "examples/web/feed.py")


class Application:
    """A web application, as the README starts it."""

    def __init__(self, gateway: GatewayProcess, *command: str) -> None:
        port = free_port()
        self.url = f"http://127.0.0.1:{port}"
        self.process = subprocess.Popen(
            [*command, str(port)], cwd=ROOT, env=environment(gateway), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        assert self.process.stdout is not None
        self.said = ""
        for line in self.process.stdout:
            self.said += line
            if "unning on" in line:
                break
        else:
            raise AssertionError(self.said)
        self._rest = threading.Thread(target=self.process.stdout.read, daemon=True)  # so that it never waits for its log
        self._rest.start()

    def ask(self, path: str, body: object = None) -> tuple[int, Any]:
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self.url + path, data, {"Content-Type": "application/json"})  # noqa: S310 - our own
        try:
            with urllib.request.urlopen(request, timeout=WAIT_S) as answer:  # noqa: S310 - our own
                return answer.status, json.load(answer)
        except urllib.error.HTTPError as error:
            with error:
                return error.code, json.load(error)

    def __enter__(self) -> Application:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.terminate()
        self.process.wait(WAIT_S)
        self._rest.join(WAIT_S)
        assert self.process.stdout is not None
        self.process.stdout.close()


def test_the_web_application_answers_when_an_order_is_in_the_log(gateway: GatewayProcess) -> None:
    with Application(gateway, *UVICORN) as application:
        assert application.ask("/orders") == (200, {"orders": [], "next": 0})
        status, taken = application.ask("/orders", {"order": 1, "item": "tea", "quantity": 2})
        assert status == 201
        assert values(gateway, "orders") == [b'{"order":1,"item":"tea","quantity":2}']
        status, refused = application.ask("/orders", {"order": 2, "item": "", "quantity": 0})
        assert status == 422
        assert {wrong["loc"][-1] for wrong in refused["detail"]} == {"item", "quantity"}
        status, found = application.ask(f"/orders?start={taken['offset']}&limit=1")
        assert (status, found["orders"]) == (200, [{"offset": taken["offset"], "order": 1, "item": "tea", "quantity": 2}])
        assert found["next"] == taken["offset"] + 1
        status, refused = application.ask(f"/orders?start={taken['offset'] + 1000}")
        assert status == 416, refused


def test_the_feed_streams_each_reading_once(gateway: GatewayProcess) -> None:
    def events(stream: Any, count: int) -> list[tuple[str, str]]:
        """Read `count` events, as pairs of id and data."""
        lines = [stream.readline().decode().strip() for _ in range(3 * count)]
        return [(at.removeprefix("id: "), data.removeprefix("data: ")) for at, data in zip(lines[::3], lines[1::3], strict=True)]

    with Application(gateway, *AIOHTTP) as application:
        offsets = [application.ask("/readings", number) for number in range(3)]
        assert [status for status, _ in offsets] == [201] * 3
        ids = [str(answer["offset"]) for _, answer in offsets]
        with urllib.request.urlopen(f"{application.url}/readings", timeout=WAIT_S) as stream:  # noqa: S310 - our own
            assert events(stream, 3) == list(zip(ids, "012", strict=True))
            _, later = application.ask("/readings", 3)
            assert events(stream, 1) == [(str(later["offset"]), "3")]
        again = urllib.request.Request(f"{application.url}/readings", headers={"Last-Event-ID": ids[1]})  # noqa: S310 - our own
        with urllib.request.urlopen(again, timeout=WAIT_S) as stream:  # noqa: S310 - our own
            assert events(stream, 2) == [(ids[2], "2"), (str(later["offset"]), "3")]
    assert application.process.returncode is not None


def test_the_page_names_every_example_and_how_to_run_it() -> None:
    page = (ROOT / "examples/README.md").read_text("utf-8")
    programs = [path for path in (ROOT / "examples").rglob("*") if path.suffix in (".py", ".toml", ".mjs")]
    assert programs
    parts = {"bytes.mjs"}  # of producer.mjs and read.mjs
    assert [path.name for path in programs if path.name not in page and path.name not in parts] == []
    for target in re.findall(r"examples/[\w./-]+", page):
        assert (ROOT / target).exists(), target
