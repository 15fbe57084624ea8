"""Tests of docs/how-to/drill.md: a group that lost all disks is restored from a backup by the page's commands."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from tests.faults.lab.network import Network
from tests.integration.examples.terminals import Terminals

pytestmark = [pytest.mark.soak, pytest.mark.lab, pytest.mark.timeout(900)]
ROOT = Path(__file__).resolve().parents[3]
HERE = "here"


def test_every_command_of_the_drill_works(tmp_path: Path) -> None:
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    with Network([HERE]) as network, Terminals(network.inside(HERE), tmp_path, {**os.environ, "PATH": path}) as terminals:
        terminals.follow(ROOT / "docs/how-to/drill.md")
