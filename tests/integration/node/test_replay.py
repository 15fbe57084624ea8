"""Tests of recordings of real gateways: they replay to the same actions, alone under load and in a group whose coordinator is
killed.
"""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.faults.recorded import kinds
from tests.support.gateway_process import GatewayProcess, Placement
from tests.support.ports import free_base
from tests.support.waiting import wait_until
from tutti import Producer
from tutti.io.admin import AdminClient
from tutti_gateway.core.protocol.events import LeaveAsked, Persisted, Received, Started, Submitted

RECORDS = 20_000
LOAD = {Started, Submitted, Persisted}


def rerun(path: Path) -> tuple[int, dict[str, Any]]:
    """Return the exit code and output of the command in a process of its own, because a replay must not depend on this one's
    hashes and numbers.
    """
    done = subprocess.run(
        [sys.executable, "-m", "tutti_gateway", "log", "rerun", str(path), "--json"],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.stdout, done.stderr
    return done.returncode, json.loads(done.stdout)


def send(url: str, count: int, size: int = 100) -> None:
    with Producer(url, producer="p") as producer:
        for number in range(count):
            producer.send(f"t{number % 3}", number.to_bytes(4, "big") * (size // 4))


def runs(directory: Path, name: str) -> list[Path]:
    return sorted(directory.glob(f"{name}-*.run"))


@contextlib.contextmanager
def group(root: Path, count: int) -> Iterator[list[GatewayProcess]]:
    """Gateways of one group, all recorded in `root`/runs."""
    placements = [Placement("127.0.0.1", free_base(), arguments=("--record", str(root / "runs"))) for _ in range(count)]
    names = [f"g{number}" for number in range(1, count + 1)]
    members = ", ".join(f'{name} = "127.0.0.1:{placement.port}"' for name, placement in zip(names, placements, strict=True))
    with contextlib.ExitStack() as opened:
        gateways = [
            GatewayProcess(root, name, f"members = {{ {members} }}", placement)
            for name, placement in zip(names, placements, strict=True)
        ]
        for gateway in gateways:
            opened.push(gateway)
            gateway.start(wait=False)
        for gateway in gateways:
            gateway.wait_ready()
        yield gateways


def coordinating(gateways: list[GatewayProcess]) -> GatewayProcess:
    """The coordinator, as soon as there is one."""
    deadline = time.monotonic() + 30
    with AdminClient(gateways[0].url) as control:
        while time.monotonic() < deadline:
            view = control.status()["view"] or {}
            for gateway in gateways:
                if gateway.name == view.get("coordinator"):
                    return gateway
            time.sleep(0.1)
    raise AssertionError("no gateway coordinates")


def test_a_gateway_under_load_that_is_killed_and_stopped_runs_again_the_same(tmp_path: Path) -> None:
    with group(tmp_path, 1) as (gateway,):
        send(gateway.url, RECORDS)
        (run,) = runs(tmp_path / "runs", "g1")
        wait_until(lambda: kinds(run) >= LOAD, "the load in the recording, of which a kill loses the end")
        gateway.kill()
        gateway.start()
        send(gateway.url, RECORDS)
        assert gateway.stop() == 0
    killed, stopped = runs(tmp_path / "runs", "g1")
    code, found = rerun(killed)
    assert (code, found["identical"], found["torn"]) == (0, True, True)
    assert kinds(killed) >= LOAD
    code, found = rerun(stopped)
    assert (code, found["identical"], found["torn"], found["closed"]) == (0, True, False, "the gateway stopped")
    assert kinds(stopped) >= LOAD | {LeaveAsked}


@pytest.mark.slow
@pytest.mark.soak
@pytest.mark.parametrize("killed_again", [False, True])
def test_members_of_a_group_whose_coordinator_is_killed_under_load_run_again_the_same(tmp_path: Path, killed_again: bool) -> None:
    with group(tmp_path, 3) as gateways:
        urls = ",".join(gateway.url.removeprefix("tutti://") for gateway in gateways)
        send(f"tutti://{urls}", RECORDS, 1000)
        dead = coordinating(gateways)
        with Producer(f"tutti://{urls}", producer="q") as producer:
            receipts = [producer.send("t", b"x" * 1000) for _ in range(RECORDS // 2)]
            dead.kill()
            receipts += [producer.send("t", b"x" * 1000) for _ in range(RECORDS // 2)]
            if killed_again:
                dead.start()
            offsets = [receipt.result(60) for receipt in receipts]
        assert offsets == sorted(offsets)
        assert [gateway.stop() for gateway in gateways if gateway.runs] == [0] * (3 if killed_again else 2)
    found = sorted((tmp_path / "runs").iterdir())
    assert len(found) == 3 + killed_again
    for path in found:
        code, told = rerun(path)
        assert (code, told["identical"], told["difference"]) == (0, True, None), path.name
        assert told["torn"] == (path == runs(tmp_path / "runs", dead.name)[0]), told
        assert kinds(path) >= {Started, Received}
