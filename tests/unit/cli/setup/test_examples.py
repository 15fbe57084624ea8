"""Tests of `tutti examples`: it writes every file of `examples/`, and replaces none without --force."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.support.commands import tutti

ROOT = Path(__file__).resolve().parents[4]


def test_the_examples_are_those_of_the_checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    done = tutti("examples")
    listed = subprocess.run(["git", "ls-files", "examples"], cwd=ROOT, check=True, capture_output=True, text=True).stdout.split()
    assert done.out == f"wrote {len(listed)} files to examples; examples/README.md has the command for each example\n"
    assert {name: (tmp_path / name).read_bytes() for name in listed} == {name: (ROOT / name).read_bytes() for name in listed}
    (tmp_path / "examples/README.md").write_text("mine")
    again = tutti("examples")
    assert again.code == 2
    assert again.err.startswith(f"error: examples/README.md already exists (and {len(listed) - 1} more files): ")
    assert (tmp_path / "examples/README.md").read_text() == "mine"
    assert tutti("examples", "--force", "--out", "examples").code == 0
    assert (tmp_path / "examples/README.md").read_bytes() == (ROOT / "examples/README.md").read_bytes()
