"""Tests of `tutti dev` with real gateways: one that was removed from its group does not restart, at once and after a restart of
all.
"""

from __future__ import annotations

import os
import signal
from pathlib import Path

from tests.integration.cli.commands import House, tutti, until
from tests.ports import free_base


def test_a_gateway_that_was_removed_is_not_started_again(tmp_path: Path) -> None:
    directory, port = tmp_path / "dev", free_base(3)
    dev = House(port, directory, "--gateways", "3", "--restart-after", "0.2")
    try:
        removed = tutti("members", "remove", "g3", url=dev.url)
        assert removed.code == 0, removed.err
        os.kill(dev.told["gateways"][2]["pid"], signal.SIGKILL)
        said = (
            "g3 was removed from the group and is not started; to bring it back: "
            f"`tutti serve --config {directory / 'g3.toml'}` and `tutti members add g3 127.0.0.1:{port + 20}`\n"
        )
        until(lambda: said in dev.log.read_text())
    finally:
        assert dev.stop() == 0
    again = House(port, directory, "--gateways", "3")
    try:
        assert [one["name"] for one in again.told["gateways"]] == ["g1", "g2"]
        assert again.log.read_text().count(said) == 2
        assert tutti("produce", "--topic", "t", given=b"1\n", url=again.url).code == 0
    finally:
        assert again.stop() == 0
