"""Tests of benchmark arguments: unusable ones are refused before any measurement, in a line that names them, and an interrupted
benchmark cleans up.
"""

from __future__ import annotations

import argparse
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.arguments import a_checkout, add_places, amount, count
from benchmarks.performance import __main__ as page

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture
def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser()
    add_places(made, kept="kept")
    made.add_argument("--rounds", type=count)
    made.add_argument("--hours", type=amount)
    made.add_argument("--against", type=a_checkout)
    return made


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (["--directory", "/nowhere"], "the directory /nowhere does not exist"),
        (["--directory", "/dev/null"], "the directory /dev/null does not exist"),
        (["--directory", "/proc/self"], "nothing can be written to /proc/self"),
        (["--directory", "/sys"], "nothing can be written to /sys: "),
        (["--json", "/sys/x.json"], "nothing can be written to /sys: "),
        (["--json", "/nowhere/x.json"], "the directory /nowhere does not exist"),
        (["--json", "/tmp"], "/tmp is a directory"),
        (["--rounds", "0"], "'0' is not a whole number of at least one"),
        (["--rounds", "1.5"], "'1.5' is not a whole number of at least one"),
        (["--hours", "nan"], "'nan' is not a finite number above zero"),
        (["--hours", "inf"], "'inf' is not a finite number above zero"),
        (["--hours", "-1"], "'-1' is not a finite number above zero"),
        (["--against", "/tmp"], "/tmp is not a checkout"),
    ],
)
def test_unusable_arguments_are_refused(
    parser: argparse.ArgumentParser, capsys: pytest.CaptureFixture[str], given: list[str], said: str
) -> None:
    with pytest.raises(SystemExit) as raised:
        parser.parse_args(given)
    assert raised.value.code == 2
    assert said in capsys.readouterr().err


def test_usable_arguments_are_accepted(parser: argparse.ArgumentParser, tmp_path: Path) -> None:
    kept = tmp_path / "x.json"
    given = parser.parse_args(["--directory", str(tmp_path), "--json", str(kept), "--rounds", "2", "--hours", "0.5"])
    assert (given.directory, given.json, given.rounds, given.hours) == (tmp_path, kept, 2, 0.5)


def test_without_files_the_pages_of_figures_stay(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    pages = tmp_path / "pages"
    pages.mkdir()
    to = ["--pages", str(pages)]
    assert page.main(to) == 2
    assert page.main([str(tmp_path / "missing.json"), *to]) == 2
    (tmp_path / "x.json").write_text("# no JSON")
    assert page.main([str(tmp_path / "x.json"), *to]) == 2
    said = capsys.readouterr().err
    assert "of which files?" in said
    assert "No such file" in said
    assert "it is no JSON file of --json" in said
    assert list(pages.iterdir()) == []


_COMMAND = """
import tempfile, time
from benchmarks.arguments import run_command
def main():
    with tempfile.TemporaryDirectory() as scratch:
        print(scratch, flush=True)
        time.sleep(60)
    return 0
run_command(main)
"""


@pytest.mark.parametrize(("told", "code", "said"), [(signal.SIGTERM, 143, ""), (signal.SIGINT, 130, "interrupted\n")])
def test_an_interrupted_benchmark_leaves_no_files(told: signal.Signals, code: int, said: str) -> None:
    command = [sys.executable, "-c", _COMMAND]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=ROOT) as running:
        assert running.stdout is not None
        scratch = Path(running.stdout.readline().strip())
        assert scratch.is_dir()
        running.send_signal(told)
        _, errors = running.communicate(timeout=30)
    assert (running.returncode, errors) == (code, said)
    assert not scratch.exists()
