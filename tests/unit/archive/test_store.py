"""Tests of the archive's directory: a published file survives a power loss, and no file replaces another one."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from tests.unit.archive.memory_archive import TABLE
from tutti.archive import writer
from tutti.archive.parquet import encode
from tutti.archive.store import LocalStore
from tutti.errors import Damaged, DiskFull, TuttiError, Unavailable

Step = tuple[str, str]


@pytest.fixture
def steps(monkeypatch: pytest.MonkeyPatch) -> list[Step]:
    """Record the operations on files and folders in order: writes, syncs, renames, deletions."""
    found: list[Step] = []

    def noted(name: str, path_of: Callable[..., str]) -> None:
        real: Any = getattr(os, name)

        def act(*given: Any, **more: Any) -> Any:
            path = path_of(*given)
            result = real(*given, **more)
            found.append((name, path))
            return result

        monkeypatch.setattr(os, name, act)

    for name in ("fsync", "fdatasync"):
        noted(name, lambda fd: os.readlink(f"/proc/self/fd/{fd}"))
    for name in ("replace", "link"):
        noted(name, lambda _source, target: str(target))
    noted("mkdir", str)
    return found


@pytest.mark.parametrize("way", ["write", "create"])
def test_a_file_is_durable_before_it_has_its_name_and_that_before_it_counts(tmp_path: Path, steps: list[Step], way: str) -> None:
    store = LocalStore(str(tmp_path))
    data = os.urandom(3_000_000)
    if way == "write":
        store.write("a/b/file", pa.py_buffer(data))
    else:
        assert store.create("a/b/file", data)
    folder = tmp_path / "a/b"
    named = steps.index(("replace" if way == "write" else "link", str(folder / "file")))
    own = [number for number, (what, path) in enumerate(steps) if what == "fsync" and Path(path).parent == folder]
    assert own, "the file itself is never synced"
    assert max(own) < named
    assert steps.index(("fsync", str(folder)), named) > named
    for made in (tmp_path / "a", folder):  # each folder is in the one above it, durably
        assert steps.index(("fsync", str(made.parent))) > steps.index(("mkdir", str(made)))
    assert (folder / "file").read_bytes() == data
    assert [path.name for path in folder.iterdir()] == ["file"]


def test_the_first_file_of_a_name_stays(tmp_path: Path) -> None:
    """Two archivers may add one range: a manifest counts from when it is there."""
    store = LocalStore(str(tmp_path))
    assert store.create("manifest", b"first")
    assert not store.create("manifest", b"second")
    assert store.read("manifest").to_pybytes() == b"first"
    assert [path.name for path in tmp_path.iterdir()] == ["manifest"]


def test_a_file_with_intact_bytes_but_other_records_does_not_count() -> None:
    groups = [TABLE.slice(0, 100)]
    made = encode(groups)
    writer._check("here", made.data, made.sha256, groups)
    with pytest.raises(Damaged, match="row group 0 does not decode to the log's records"):
        writer._check("here", made.data, made.sha256, [TABLE.slice(1, 100)])
    with pytest.raises(Damaged, match="the bytes read back differ from the written ones"):
        writer._check("here", made.data.slice(1), made.sha256, groups)


@pytest.mark.parametrize(("number", "kind"), [(errno.ENOSPC, DiskFull), (errno.EDQUOT, DiskFull), (errno.EFBIG, Unavailable)])
def test_a_full_disk_is_told_from_a_file_that_may_not_grow(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, kind: type[TuttiError]
) -> None:
    def full(*_: object) -> None:
        raise OSError(number, os.strerror(number))

    store = LocalStore(str(tmp_path))
    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(kind, match=os.strerror(number)):
        store.write("file", pa.py_buffer(b"x"))
