"""Tests of commands that read a log before the group is founded: they report that the log has not started, which differs from an
empty log.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.unit.client.fake_flight_server import ReadableGateway
from tests.unit.client.fake_gateway import LOG_UUID, FakeGateway
from tutti import limits
from tutti.data import client_protocol
from tutti.log.files.data_directory import open_directory
from tutti.reader import Reader
from tutti_gateway.cli.main import main

TAIL = [sys.executable, "-m", "tutti_gateway", "tail", "--format", "value", "--url"]


@pytest.fixture
def founding() -> Iterator[ReadableGateway]:
    """A gateway whose group is not founded yet."""
    with ReadableGateway(log="") as gateway:
        gateway.reads.state = "joining"
        yield gateway


@pytest.fixture
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "CONNECT_TIMEOUT_US", 1_200_000)
    monkeypatch.setitem(Reader.__init__.__kwdefaults__ or {}, "connect_timeout", 1.2)


@pytest.mark.usefixtures("hasty")
@pytest.mark.parametrize(
    "command",
    [
        ["tail"],
        ["tail", "--last", "3"],
        ["tail", "--start", "latest", "--topic", "t"],
        ["tail", "--unordered"],
        ["topics"],
        ["topics", "--json"],
        ["queries"],
        ["offsets", "--time", "2026-01-31T12:00:00Z"],
        ["replay", "--out", "out.jsonl"],
    ],
)
def test_the_missing_log_is_reported(
    founding: ReadableGateway,
    command: list[str],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main([*command, "--url", founding.url]) == 3
    address = founding.url.removeprefix("tutti://")
    assert capsys.readouterr() == (
        "",
        f"error: there is no log at {address} after 1.2 s: the group is founded once all its gateways run; "
        "`tutti members` lists the missing ones\n",
    )
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("command", [["producers"], ["producers", "list", "--json"]])
def test_the_missing_log_is_reported_for_producers_too(command: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    def nobody(heard: object) -> list[object] | None:
        return (
            [client_protocol.StatusAnswer(heard.request, b'{"producers": []}')]
            if isinstance(heard, client_protocol.Producers)
            else None
        )

    with FakeGateway(rule=nobody) as gateway:
        assert main([*command, "--url", gateway.url]) == 0
        assert capsys.readouterr().out in ("no producers\n", "[]\n")
        gateway.log.uuid = ""
        assert main([*command, "--url", gateway.url]) == 3
    out, err = capsys.readouterr()
    assert (out, err.startswith(f"error: no log has begun at {gateway.url.removeprefix('tutti://')}: ")) == ("", True)


def test_a_range_is_read_when_the_log_begins_meanwhile(founding: ReadableGateway) -> None:
    with subprocess.Popen([*TAIL, founding.url], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as tail:
        while not founding.reads.asked:
            assert tail.poll() is None
        founding.add(2)
        founding.reads.log, founding.reads.state = LOG_UUID, "primary"
        assert tail.communicate(timeout=60) == ("0\n1\n", "")
    assert tail.returncode == 0


def test_a_follower_waits_for_the_log_and_reports_it(founding: ReadableGateway) -> None:
    with subprocess.Popen([*TAIL, founding.url, "-f"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as tail:
        assert tail.stderr is not None
        assert tail.stdout is not None
        said = "waiting for the log to start: the group is not founded yet; `tutti members` shows the missing gateways\n"
        assert tail.stderr.readline() == said
        founding.reads.log, founding.reads.state = LOG_UUID, "primary"
        founding.add(1)
        assert tail.stdout.readline() == "0\n"
        tail.send_signal(signal.SIGINT)
        assert tail.communicate(timeout=60) == ("", "")
    assert tail.returncode == 0


def test_a_directory_without_a_log_is_no_empty_one(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = tmp_path / "data"
    open_directory(str(data), gateway="jfk", group="ingest").close()
    assert main(["replay", "--path", str(data), "--out", str(tmp_path / "out.jsonl"), "--json"]) == 3
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("error: the directory holds no log yet, because its gateway has not joined a founded group")
    assert not (tmp_path / "out.jsonl").exists()


def test_an_empty_log_is_one(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    with ReadableGateway() as gateway:
        assert main(["tail", "--url", gateway.url]) == 0
        assert main(["replay", "--url", gateway.url, "--out", str(tmp_path / "out.jsonl"), "--json"]) == 0
    out, err = capsys.readouterr()
    assert (json.loads(out)["records"], err) == (0, "")
