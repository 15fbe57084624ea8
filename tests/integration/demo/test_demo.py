"""Tests of a smaller demo: the coordinator and the query are killed, every promise is checked, and errors end it correctly."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.support.ports import free_base
from tests.support.processes import expect_end
from tutti_gateway.cli import main as entry
from tutti_gateway.cli.demo import command, run
from tutti_gateway.cli.demo.checks import Check, Speed
from tutti_gateway.cli.demo.processes import Failed, ProcessGroup, wait_until
from tutti_gateway.cli.demo.run import PICTURE, REPORT, Demo, Outcome, Plan, prepare_directory

DEPARTURES = 4000


@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.timeout(400)
def test_a_part_of_the_year_with_both_kills_holds_every_promise(tmp_path: Path) -> None:
    said: list[str] = []
    directory = tmp_path / "demo"
    with prepare_directory(directory):
        outcome = Demo(Plan(directory, free_base(3), limit=DEPARTURES, year_s=6.0), said.append).run()
    assert [check for check in outcome.checks if not check.held] == []
    assert len(outcome.checks) == 6
    coordinator, query = [kill.what for kill in outcome.kills]
    assert coordinator in [f"the coordinator, {name}," for name in ("jfk", "lga", "ewr")]
    assert query == "the query"
    assert outcome.speed.records == DEPARTURES
    assert (len(outcome.digest), len(outcome.log)) == (64, 32)
    assert "was killed by SIGKILL; it restarts" in (directory / "logs" / "gateways.log").read_text()
    assert (directory / PICTURE).read_text().count("<svg") == 3
    assert any(f"{coordinator} was killed with SIGKILL" in line for line in said)
    assert json.loads(json.dumps(outcome.fields()))["held"] is True


class Result(NamedTuple):
    code: int
    out: str
    err: str


@pytest.fixture
def demo(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Callable[..., Result]:
    """Runs the command in this process."""

    def run_it(*options: str) -> Result:
        code = entry.main(["demo", "--data", str(tmp_path / "demo"), "--port", str(free_base(3)), *options])
        captured = capsys.readouterr()
        return Result(code, captured.out, captured.err)

    return run_it


def test_without_java(demo: Callable[..., Result], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    done = demo()
    assert (done.code, done.out) == (3, "")
    assert done.err.startswith("error: the demo needs java (there is no java on PATH, and JAVA_HOME is not set): install")
    assert done.err.count("\n") == 1


def test_with_an_old_java(demo: Callable[..., Result], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    java = tmp_path / "bin" / "java"
    java.parent.mkdir()
    java.write_text("#!/bin/sh\necho 'openjdk version \"1.8.0_402\"' >&2\n")
    java.chmod(0o755)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    done = demo()
    assert done.code == 3
    assert f"the demo needs java (1.8.0_402 at {java}): install Java 17 or newer" in done.err


def test_with_a_port_in_use(demo: Callable[..., Result]) -> None:
    base = free_base()
    with socket.socket() as other:
        other.bind(("127.0.0.1", base + 2))
        other.listen()
        done = demo("--port", str(base))
    assert (done.code, done.out, done.err.count("\n")) == (3, "", 1)
    assert f"the ports {base} to {base + 3} for gateway jfk, but other programs use {base + 2} (reads)" in done.err


def test_with_a_full_disk(demo: Callable[..., Result], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    usage = shutil.disk_usage(tmp_path)._replace(free=100 << 20)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage)
    done = demo()
    assert (done.code, done.out) == (3, "")
    assert done.err == (
        f"error: the demo needs 4096 MiB and {tmp_path} has 100 MiB free: "
        "free some space, or choose another directory with --data\n"
    )


def test_a_directory_that_is_no_demos_is_left_alone(demo: Callable[..., Result], tmp_path: Path) -> None:
    mine = tmp_path / "demo" / "mine"
    mine.parent.mkdir()
    mine.write_text("mine")
    done = demo()
    assert (done.code, done.out) == (2, "")
    assert "holds files that are not from a demo: choose another directory with --data" in done.err
    assert mine.read_text() == "mine"


_HOLDER = """\
import subprocess, sys, time
from pathlib import Path
from tutti_gateway.cli.demo.run import prepare_directory
with prepare_directory(Path(sys.argv[1])):
    child = subprocess.Popen(["sleep", "100"], stdout=subprocess.DEVNULL)
    print(child.pid, flush=True)
    time.sleep(100)
"""


def test_a_second_demo_leaves_the_directory_of_a_running_one_alone(
    demo: Callable[..., Result], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Its lock ends with the first one, killed or not, also while a child of that one still runs."""
    directory = tmp_path / "demo"
    monkeypatch.setattr(Demo, "run", lambda _: outcome(True))
    with subprocess.Popen([sys.executable, "-c", _HOLDER, str(directory)], stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout is not None
        child = int(holder.stdout.readline())
        try:
            (directory / "logs").mkdir()
            done = demo()
            said = f"error: another demo (process {holder.pid}) runs in {directory}; wait for its end, or choose another --data\n"
            assert done == Result(3, "", said)
            assert (directory / "logs").is_dir()
            holder.kill()
            holder.wait()
            os.kill(child, 0)
            assert demo().code == 0
        finally:
            os.kill(child, signal.SIGKILL)
            holder.kill()


def outcome(held: bool) -> Outcome:
    return Outcome([Check("a promise", held, "3 of 4")], Speed(4, 2.0, 0.5, 1.5, 9.0), "d" * 64, "e" * 32, [], 5.0)


@pytest.mark.parametrize("keep", [False, True])
def test_a_run_that_held_leaves_picture_and_report(
    demo: Callable[..., Result], monkeypatch: pytest.MonkeyPatch, tmp_path: Path, keep: bool
) -> None:
    def ran(demo: Any) -> Outcome:
        (tmp_path / "demo" / PICTURE).write_text("picture")
        return outcome(True)

    monkeypatch.setattr(Demo, "run", ran)
    done = demo(*(["--keep"] if keep else []))
    assert done.code == 0
    lines = done.out.splitlines()
    assert lines[0] == "held      a promise: 3 of 4"
    assert lines[1] == "log digest " + "d" * 64
    assert lines[2].startswith("4 records in 2 s at the pace of the demo (2 a second); commit latency p50 0.50 ms, p99 1.50 ms")
    kept = {file.name for file in (tmp_path / "demo").iterdir()}
    assert {PICTURE, REPORT} < kept
    assert ("logs" in kept) == keep
    assert json.loads((tmp_path / "demo" / REPORT).read_text())["held"] is True
    again = demo("--json")
    assert (again.code, json.loads(again.out)["checks"][0]["promise"]) == (0, "a promise")


def test_a_promise_that_did_not_hold_fails_and_leaves_everything(
    demo: Callable[..., Result], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(Demo, "run", lambda _: outcome(False))
    done = demo()
    assert done.code == 1
    assert done.out.startswith("NOT HELD  a promise: 3 of 4\n")
    assert done.err == f"error: not every promise held; all files are kept in {tmp_path / 'demo'}\n"
    assert (tmp_path / "demo" / "logs").is_dir()


def test_a_failing_process_ends_the_run_with_its_last_output(
    demo: Callable[..., Result], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(run, "load", lambda _: [])

    def fail(self: Demo) -> Outcome:
        with ProcessGroup(tmp_path / "demo" / "logs") as house:
            process = house.start("gateway", [sys.executable, "-c", "raise SystemExit('error: no luck')"])
            wait_until(lambda: False, 20, "luck", [process])
        raise AssertionError

    monkeypatch.setattr(Demo, "run", fail)
    done = demo()
    assert done.code == 1
    assert "error: gateway ended with 1 too early; its last output: error: no luck\n" in done.err
    assert f"the logs of each process are in {tmp_path / 'demo' / 'logs'}" in done.err


def test_no_process_outlives_the_household(tmp_path: Path) -> None:
    code = "import subprocess, sys; subprocess.Popen(['sleep', '1000']); print('up', flush=True); import time; time.sleep(100)"
    with ProcessGroup(tmp_path) as house:
        process = house.start("parent", [sys.executable, "-c", code])
        wait_until(lambda: process.output.read_text() == "up\n", 20, "start", [process])
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
        assert children
    expect_end(*map(int, children))
    with pytest.raises(ProcessLookupError):
        os.kill(process.pid, 0)


def test_a_wait_without_effect_fails(tmp_path: Path) -> None:
    with ProcessGroup(tmp_path) as house:
        process = house.start("sleeper", ["sleep", "100"])
        with pytest.raises(Failed, match=r"sleeper did not end within 0 s; its last output: nothing"):
            process.finish(0.1)
        with pytest.raises(Failed, match=r"the moon did not happen within 0 s"):
            wait_until(lambda: False, 0.1, "the moon", [process])


def test_one_that_may_end_well_is_not_missed_and_one_that_fails_is(tmp_path: Path) -> None:
    with ProcessGroup(tmp_path) as house:
        feeder, other = house.start("feeder", ["true"]), house.start("other", ["sleep", "100"])
        feeder.may_end = True
        feeder.finish(10)
        wait_until(lambda: True, 10, "nothing", [feeder, other])
        feeder.expect_running()
        failing = house.start("failing", ["false"])
        failing.may_end = True
        with pytest.raises(Failed, match=r"failing ended with 1 too early"):
            wait_until(lambda: False, 10, "the moon", [failing])


def test_disk_needed_is_more_than_a_gateway_reserves() -> None:
    from tutti import limits

    assert limits.DISK_LOW_BYTES + (limits.PREPARED_SEGMENTS + 2) * limits.SEGMENT_BYTES < command.GATEWAY_BYTES
