"""Tests of `tutti dev` with real gateways: removed gateways do not restart, and a few records take little disk space."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path

from tests.support.commands import TUTTI, WAIT_S, DevGroup, dev_group, tutti
from tests.support.ports import free_base
from tests.support.waiting import wait_until

DISK_BYTES_MAX = 100 * 10**6  # of three gateways with a few records


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


def test_three_gateways_with_a_few_records_take_little_disk_space(tmp_path: Path) -> None:
    directory = tmp_path / "dev"
    with dev_group(directory, "--gateways", "3") as dev:
        assert tutti("produce", "--topic", "t", given=b"1\n" * 43, url=dev.url).code == 0
        assert 0 < disk_bytes(directory) < DISK_BYTES_MAX


def test_a_directory_of_an_earlier_release_opens_and_its_prepared_segments_are_removed(tmp_path: Path) -> None:
    directory, port = tmp_path / "dev", free_base()
    directory.mkdir()
    config = directory / "g1.toml"
    config.write_text(
        f'name = "g1"\ndata = "{directory / "g1"}"\nlisten = "127.0.0.1:{port}"\n\n'
        f'[group]\nname = "dev"\npreset = "local"\nmembers = {{ g1 = "127.0.0.1:{port}" }}\n\n[log]\nsegment_bytes = 33554432\n'
    )
    earlier = subprocess.Popen([*TUTTI, "serve", "--config", str(config)], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    assert earlier.stdout is not None
    assert earlier.stdout.readline()
    url = f"tutti://127.0.0.1:{port}"
    assert tutti("produce", "--topic", "t", given=b"1\n2\n", url=url).code == 0
    wait_until(lambda: any(name.startswith("prepared-") and name.endswith(".seg") for name in log_files(directory / "g1")))
    earlier.terminate()
    earlier.communicate(timeout=WAIT_S)
    again = DevGroup(port, directory)
    try:
        assert [name for name in log_files(directory / "g1") if name.startswith("prepared-")] == []
        assert tutti("produce", "--topic", "t", given=b"3\n", url=url).code == 0
        assert tutti("tail", "--topic", "t", "--format", "value", url=url).lines == ["1", "2", "3"]
    finally:
        assert again.stop() == 0


def log_files(data: Path) -> list[str]:
    """Return the names of the files in the log of a data directory."""
    return sorted(file.name for file in (data / "log").iterdir())


def disk_bytes(directory: Path) -> int:
    """Return the size of all blocks that the files below a directory occupy, also of allocated blocks without data."""
    return sum(file.stat().st_blocks * 512 for file in directory.rglob("*"))
