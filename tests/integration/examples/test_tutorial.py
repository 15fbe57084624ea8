"""Tests of docs/tutorial/getting-started.md: each command, typed as printed, shows the whole output of the page and no more."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path

import pytest

from tests.faults.lab.network import Network
from tests.integration.examples.terminals import Terminals, steps

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.lab, pytest.mark.timeout(900)]
ROOT = Path(__file__).resolve().parents[3]
HERE = "here"
PAGE = ROOT / "docs/tutorial/getting-started.md"


def test_every_command_of_the_tutorial_works(tmp_path: Path) -> None:
    """On a host of its own, so that its ports are free, whatever else runs on this machine."""
    assert "    make setup\n    . .venv/bin/activate\n" in PAGE.read_text("utf-8"), "what this test's own environment stands for"
    assert not any("..." in line for step in steps(PAGE) if not step.typed for line in step.lines), "the page has the whole output"
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    with Network([HERE]) as network, Terminals(network.inside(HERE), tmp_path, {**os.environ, "PATH": path}) as terminals:
        terminals.follow(PAGE)
        assert terminals.not_compared == []
        digests = re.findall(r"[0-9a-f]{64}", terminals.all["Terminal 2"].shown)
    assert len(digests) == 2
    assert len(set(digests)) == 1, "what its last sentence says"
