"""Tests of directories for records: other accounts cannot read new ones, and existing ones keep their mode."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tutti.archive.store import open_store
from tutti.errors import DirectoryRefused, TuttiError
from tutti.log.files.data_directory import open_directory
from tutti.runtime.durable_files import make_directory, open_file
from tutti.spool.inspect import read_state
from tutti.spool.store import STATE, SpoolStore
from tutti_connect.files.discovery.ledger import Ledger
from tutti_connect.quarantine import Quarantine
from tutti_spark.backfill.ledger import FILE, read


@pytest.fixture(autouse=True)
def _umask_of_most_systems() -> Iterator[None]:
    before = os.umask(0o022)
    yield
    os.umask(before)


@pytest.mark.parametrize(
    "make",
    [
        lambda path: open_directory(str(path), gateway="g1", group="g"),
        lambda path: SpoolStore(str(path), "p", 1 << 20),
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


def pipe(path: Path) -> Path:
    os.mkfifo(path)
    return path


def unix_socket(path: Path) -> Path:
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
    return path


def directory(path: Path) -> Path:
    path.mkdir()
    return path


def link_to_a_device(path: Path) -> Path:
    path.symlink_to("/dev/zero")
    return path


@pytest.mark.parametrize("flags", [os.O_RDONLY, os.O_RDWR, os.O_WRONLY])
@pytest.mark.parametrize("make", [pipe, unix_socket, directory, link_to_a_device])
def test_a_path_that_is_not_a_file_is_not_opened(tmp_path: Path, make: Callable[[Path], Path], flags: int) -> None:
    path = make(tmp_path / "one.seg")
    before = len(os.listdir("/proc/self/fd"))
    with pytest.raises(OSError, match=r"not a file|Is a directory") as raised:
        open_file(path, flags)
    assert raised.value.filename == str(path) or raised.value.filename == path
    assert len(os.listdir("/proc/self/fd")) == before


def test_a_link_to_a_file_is_opened(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"x")
    (tmp_path / "link").symlink_to(tmp_path / "file")
    with open(tmp_path / "link", "rb", opener=open_file) as file:
        assert file.read() == b"x"


def test_a_named_pipe_in_a_spool_an_archive_or_a_ledger_is_refused(tmp_path: Path) -> None:
    """Each names the file, and does not wait."""
    spool, store, table = tmp_path / "spool", tmp_path / "archive", tmp_path / "table"
    SpoolStore(str(spool), "p", 1 << 20).close()
    (spool / STATE).unlink()
    pipe(spool / STATE)
    with pytest.raises(DirectoryRefused, match="named pipe"):
        SpoolStore(str(spool), "p", 1 << 20)
    with pytest.raises(OSError, match="named pipe"):
        read_state(str(spool))
    store.mkdir()
    pipe(store / "one")
    with pytest.raises(TuttiError, match="named pipe"):
        open_store(str(store)).read("one")
    table.mkdir()
    pipe(table / FILE)
    with pytest.raises(OSError, match="named pipe"):
        read(table)
