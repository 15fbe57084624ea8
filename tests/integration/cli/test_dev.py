"""Tests of `tutti dev` with real gateways: one that was removed from its group does not restart, at once and after a restart of
all.
"""

from __future__ import annotations

import os
import signal
from pathlib import Path

from tests.support.commands import DevGroup, tutti
from tests.support.ports import free_base
from tests.support.waiting import wait_until


def test_a_gateway_that_was_removed_is_not_started_again(tmp_path: Path) -> None:
    directory, port = tmp_path / "dev", free_base(3)
    dev = DevGroup(port, directory, "--gateways", "3", "--restart-after", "0.2")
    try:
        removed = tutti("members", "remove", "g3", url=dev.url)
        assert removed.code == 0, removed.err
        os.kill(dev.told["gateways"][2]["pid"], signal.SIGKILL)
        said = (
            "g3 was removed from the group and is not started; to bring it back: "
            f"`tutti serve --config {directory / 'g3.toml'}` and `tutti members add g3 127.0.0.1:{port + 20}`\n"
        )
        wait_until(lambda: said in dev.log.read_text())
    finally:
        assert dev.stop() == 0
    again = DevGroup(port, directory, "--gateways", "3")
    try:
        assert [one["name"] for one in again.told["gateways"]] == ["g1", "g2"]
        assert again.log.read_text().count(said) == 2
        assert tutti("produce", "--topic", "t", given=b"1\n", url=again.url).code == 0
    finally:
        assert again.stop() == 0
