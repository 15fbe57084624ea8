"""Tests of recordings with unordered batches: a run, and the start after a kill in the middle of it, replay as recorded."""

from __future__ import annotations

import json
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

from tests.faults.recorded import events_of, kinds
from tests.integration.lanes.sender import Sender
from tests.support.gateway_process import GatewayProcess, Placement
from tests.support.ports import free_base
from tests.support.waiting import wait_until
from tutti_gateway.core.protocol.events import LanePersisted, Started, SubmittedUnordered

LOAD = {Started, SubmittedUnordered, LanePersisted}


@pytest.mark.soak
def test_recorded_runs_with_lanes_replay(tmp_path: Path) -> None:
    runs = tmp_path / "runs"
    placement = Placement("127.0.0.1", free_base(), arguments=("--record", str(runs)))
    with GatewayProcess(tmp_path, placement=placement) as gateway:
        with closing(Sender(gateway.port, "p").open()) as sender:
            sender.send_until(100)
            wait_until(lambda: kinds(next(runs.iterdir())) >= LOAD, "the load in the recording, of which a kill loses the end")
            sender.submit(101, 50)
            gateway.kill()
        gateway.start()
        with closing(Sender(gateway.port, "p", sender.instance).open()) as again:
            again.acknowledged = sender.acknowledged
            again.send_until(200)
            assert again.lane == sender.lane
        assert gateway.stop() == 0
    killed, stopped = sorted(runs.glob("*.run"))
    for path in (killed, stopped):
        done = subprocess.run(
            [sys.executable, "-m", "tutti_gateway", "log", "rerun", str(path), "--json"],
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        told = json.loads(done.stdout)
        assert (done.returncode, told["difference"]) == (0, None), done.stdout
        assert kinds(path) >= LOAD
    first = events_of(stopped)[0]
    assert isinstance(first, Started)
    assert any(lane.position for lane in first.recovered.lanes)
