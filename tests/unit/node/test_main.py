"""Tests of the start: a directory that will be refused is not served to readers before the check."""

from __future__ import annotations

import fcntl
from pathlib import Path
from typing import Any

import pytest

from tutti.log.files.data_directory import open_directory
from tutti_gateway.config import load_config
from tutti_gateway.node import main


class Reads:
    """Stands in for the supervisor of the reads process."""

    started = 0

    def __init__(self, *_: Any, encrypted: bool) -> None:
        Reads.started = 0

    def start(self) -> None:
        Reads.started += 1

    def stop(self) -> None:
        """Nothing runs."""


class Opened(Exception):
    """The directory would be opened now."""


def refuse(*_: Any) -> None:
    raise Opened


@pytest.fixture
def start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(main, "Supervisor", Reads)
    monkeypatch.setattr(main, "wait_free", lambda _: None)
    monkeypatch.setattr(main, "raise_limit", lambda: None)
    monkeypatch.setattr("tutti_gateway.node.process.Gateway", refuse)

    def start_it(name: str, group: str) -> int:
        """How often reads were started before the directory is opened."""
        file = tmp_path / "config.toml"
        file.write_text(f'name = "{name}"\ndata = "{tmp_path / "data"}"\nlisten = "127.0.0.1:7400"\n[group]\nname = "{group}"\n')
        with pytest.raises(Opened):
            main.run(load_config(file))
        return Reads.started

    return start_it


def test_reads_begin_early_only_on_a_directory_of_our_own(start: Any, tmp_path: Path) -> None:
    data = tmp_path / "data"
    assert start("jfk", "ingest") == 0
    open_directory(str(data), gateway="jfk", group="ingest").close()
    assert start("jfk", "ingest") == 1
    assert start("lga", "ingest") == 0
    assert start("jfk", "other") == 0
    with (data / "LOCK").open("rb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert start("jfk", "ingest") == 0
    for text in ("", "[]", "{", "[" * 100_000):
        (data / "identity.json").write_text(text)
        assert start("jfk", "ingest") == 0


def test_a_gateway_excluded_by_its_group_is_not_shown(start: Any, tmp_path: Path) -> None:
    directory = open_directory(str(tmp_path / "data"), gateway="jfk", group="ingest")
    directory.mark_left("the group went on without it")
    directory.close()
    assert start("jfk", "ingest") == 0
