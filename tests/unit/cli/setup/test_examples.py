"""Tests of `tutti examples`: it writes every file of `examples/`, and replaces none without --force."""

from __future__ import annotations

import re
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
    assert tutti("examples", "--force").code == 0
    assert (tmp_path / "examples/README.md").read_bytes() == (ROOT / "examples/README.md").read_bytes()


def test_the_commands_in_the_examples_name_the_chosen_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert tutti("examples", "--out", "tried/tutti").code == 0
    page = Path("tried/tutti/README.md").read_text()
    assert "`python tried/tutti/python/send.py tried/tutti/orders.jsonl orders`" in page
    for target in re.findall(r"tried/tutti/[\w./-]+", page):
        assert Path(target).exists(), target
    assert "python tried/tutti/python/read.py TOPIC" in Path("tried/tutti/python/read.py").read_text()
    assert [path for path in Path("tried").rglob("*.*") if b"examples/" in path.read_bytes()] == []


def test_the_examples_name_no_page_or_file_of_a_checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert tutti("examples").code == 0
    lines = [line for path in Path("examples").rglob("*.*") for line in path.read_text("utf-8").splitlines()]
    assert [line for line in lines if re.search(r"\b(conf|docker|deploy|tools|docs)/", line) and "checkout" not in line] == []
