"""Proves that directories for records are closed to other accounts, and that what exists keeps its mode."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from connectors.files.ledger import Ledger
from connectors.quarantine import Quarantine
from gateway.client.spool.store import Store
from gateway.durable import make_directory
from gateway.log.directory import open_directory


@pytest.fixture(autouse=True)
def _umask_of_most_systems() -> Iterator[None]:
    before = os.umask(0o022)
    yield
    os.umask(before)


@pytest.mark.parametrize(
    "make",
    [
        lambda path: open_directory(str(path), gateway="g1", group="g"),
        lambda path: Store(str(path), "p", 1 << 20),
        lambda path: Quarantine(str(path)),
        lambda path: Ledger(str(path), "files", grows=False),
    ],
)
def test_a_directory_for_records_is_closed_to_other_accounts(make: Callable[[Path], object], tmp_path: Path) -> None:
    path = tmp_path / "above" / "place"
    make(path)
    assert path.stat().st_mode & 0o777 == 0o750
    assert path.parent.stat().st_mode & 0o777 == 0o755


def test_a_directory_that_exists_keeps_its_mode(tmp_path: Path) -> None:
    place = tmp_path / "place"
    place.mkdir(mode=0o755)
    Quarantine(str(place))
    assert place.stat().st_mode & 0o777 == 0o755


def test_a_path_of_too_many_directories_is_refused_as_one_that_is_too_long(tmp_path: Path) -> None:
    for count in (1900, 2500):  # the system takes 4,096 bytes
        with pytest.raises(OSError, match=r"too (many|long)"):
            make_directory(tmp_path / ("p/" * count))
    assert not list(tmp_path.iterdir())
