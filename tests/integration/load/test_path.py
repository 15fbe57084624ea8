"""Tests of the comparison of two checkouts with real gateways: each runs its own code, even without the files of the comparison."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from benchmarks.path.group import package_roots
from tests.support.waiting import wait_until

ROOT = Path(__file__).resolve().parents[3]
WAIT_S = 240.0


@pytest.fixture
def older(tmp_path: Path) -> Path:
    """A checkout of the same code without `benchmarks/path`."""
    made = tmp_path / "older"
    made.mkdir()
    for name in ("tutti", "gateway", "streaming", "connectors"):
        (made / name).symlink_to(ROOT / name)
    shutil.copytree(
        ROOT / "benchmarks", made / "benchmarks", ignore=lambda folder, _: ["path"] if folder == str(ROOT / "benchmarks") else []
    )
    return made


def path(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "benchmarks.path", *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=WAIT_S, check=False)


@pytest.mark.timeout(300)
def test_both_checkouts_have_figures_of_each_work(older: Path, tmp_path: Path) -> None:
    result = tmp_path / "path.json"
    works = ["many-load", "one-load", "one"]
    once = ["--quick", "--rounds", "1", "--members", "1", "--directory", str(tmp_path), "--json", str(result)]
    ran = path(*works, "--against", str(older), "--threads", *once)
    assert ran.returncode == 0, ran.stderr
    found: dict[tuple[str, str], dict[str, Any]] = {
        (one["work"], one["measure"]): one["rounds"] for one in json.loads(result.read_text())["found"]
    }
    for work, measures in {"many-load": {"k/s"}, "one-load": {"p50", "p99"}, "one": {"p50", "p99"}}.items():
        rows = {measure: rounds for (name, measure), rounds in found.items() if name == work}
        assert rows.keys() == measures | {"CPU of a record, us", "  client", "  coordinator"}
        for rounds in rows.values():
            assert rounds.keys() == {"this tree", str(older)}
            assert all(value > 0 for values in rounds.values() for value in values)
    assert "client, load generator" in ran.stdout
    assert ran.stdout.splitlines()[-1].startswith("path: 3 works, 1 rounds, ")


@pytest.mark.timeout(120)
def test_ctrl_c_ends_the_group_at_once_and_leaves_nothing(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "benchmarks.path", "many", "--rounds", "1", "--directory", str(tmp_path)]
    with subprocess.Popen(command, cwd=ROOT, start_new_session=True, stderr=subprocess.PIPE, text=True) as process:
        wait_until(lambda: list(tmp_path.glob("*/*/bench1/log/*")), "the group has no log", seconds=60)
        time.sleep(2)  # the group becomes ready, and its clients begin
        os.killpg(process.pid, signal.SIGINT)
        _, stderr = process.communicate(timeout=20)
    assert process.returncode == 130
    assert stderr == "interrupted\n"
    assert list(tmp_path.iterdir()) == []


def test_the_packages_of_a_checkout_come_first(older: Path) -> None:
    assert package_roots(older) == [older, older / "connectors", older / "gateway", older / "streaming"]


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["nothing"], "unknown work 'nothing': the works are many-load, many, one-load"),
        (["--against", "/"], "/ is not a checkout of Tutti: it contains no benchmarks/fleet.py"),
        (["--rounds", "0"], "'0' is not a whole number of at least one"),
    ],
)
def test_what_cannot_be_measured_is_refused(arguments: list[str], told: str) -> None:
    ran = path(*arguments)
    assert ran.returncode == 2
    assert told in ran.stderr
