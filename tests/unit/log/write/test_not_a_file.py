"""Proves that a named pipe in the place of a file of the log makes no gateway or tool wait: each ends with an error that names the
file or its directory, or does without the file.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType

import pytest

from tests.unit.log.history import GATEWAY, GROUP, SMALL, sample, write_log
from tutti.errors import TuttiError
from tutti.log.files.data_directory import open_directory
from tutti_gateway.log.tools.verify import verify
from tutti_gateway.log.writer import LogWriter

HISTORY = sample(10, voters=3)
WAIT_S = 60.0


@contextlib.contextmanager
def no_wait() -> Iterator[None]:
    """A call that does not come back ends with an error."""

    def end(signum: int, frame: FrameType | None) -> None:
        raise AssertionError("it waits for the pipe")

    before = signal.signal(signal.SIGALRM, end)
    signal.setitimer(signal.ITIMER_REAL, WAIT_S)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def start(path: Path) -> None:
    directory = open_directory(str(path), gateway=GATEWAY, group=GROUP)
    try:
        writer, _ = LogWriter.open(directory, SMALL)
        writer.close()
    finally:
        directory.close()


def check(path: Path) -> None:
    verify(path)


def outcome(use: Callable[[Path], None], path: Path) -> str:
    """What it says; empty if it does without the file."""
    try:
        with no_wait():
            use(path)
    except (TuttiError, OSError) as error:
        return str(error)
    return ""


@pytest.mark.parametrize("use", [start, check])
def test_a_named_pipe_in_the_place_of_a_file_is_not_waited_for(tmp_path: Path, use: Callable[[Path], None]) -> None:
    whole, path = tmp_path / "whole", tmp_path / "one"
    write_log(whole, HISTORY)
    files = sorted(one.relative_to(whole) for one in whole.rglob("*") if one.is_file())
    said = {}
    for name in {one.suffix or one.name: one for one in files}.values():  # the last one of each kind
        shutil.copytree(whole, path)
        (path / name).unlink()
        os.mkfifo(path / name)
        said[name.name] = outcome(use, path)
        shutil.rmtree(path)
    assert len(said) > 3
    assert all(str(path) in told or name in told for name, told in said.items() if told), said
    segment = next(name for name in said if name.endswith(".seg"))
    assert f"{segment} is a named pipe, not a file" in said[segment], said
