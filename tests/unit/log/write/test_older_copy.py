"""An older copy that is put back, whatever way, is told from the original; the original is never taken for a copy, whatever
happened to its gateway and whatever else is done to its files.
"""

from __future__ import annotations

import errno
import json
import os
import shutil
import subprocess
import time
import zlib
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from tests.unit.log.history import GATEWAY, GROUP, SMALL, decide, sample, write_log
from tests.unit.log.watched import Filling, Watched, failing
from tutti.data.frames.frame import Buffer
from tutti.data.hard_state import HardState
from tutti.errors import disk_remedy
from tutti.log.files.data_directory import DataDirectory, Identity, declare_moved, lock_directory, open_directory, read_identity
from tutti.log.files.file_identity import FileIdentity, file_identity_of
from tutti.log.files.storage import Storage, SyncFailed
from tutti_gateway.core import limits
from tutti_gateway.log.writer import LogWriter

HISTORY = sample(10, voters=3)


def opened_here(path: Path, storage: Storage | None = None) -> DataDirectory:
    return open_directory(str(path), gateway=GATEWAY, group=GROUP, storage=storage)


def start(path: Path, storage: Storage | None = None) -> str:
    """Start and stop a gateway on it; what it says about a copy."""
    directory = opened_here(path, storage)
    try:
        writer, _ = LogWriter.open(directory, SMALL, storage)
        writer.close()
    finally:
        directory.close()
    return directory.renewed


class Killed(Storage):
    """Of a process that does nothing any more."""

    def open(self, path: str, *, create: bool = False) -> int:
        raise OSError(errno.EIO, path)


def kill(directory: DataDirectory) -> None:
    """What is left of its process is that the lock goes."""
    directory.storage = Killed()
    directory.close()


def copied(path: Path) -> bool:
    """What the next start will find; nothing is changed."""
    directory = lock_directory(path)
    directory.close()
    return directory.copied


def identity_of(path: Path) -> Identity:
    identity = read_identity(str(path))
    assert identity is not None
    return identity


def copy(source: Path, target: Path) -> None:
    target.mkdir(exist_ok=True)
    subprocess.run(["cp", "-a", f"{source}/.", str(target)], check=True)


# Ways to put a copy back. All of them keep the folders, so that the log's has the number that was noted.


def into_the_files(old: Path, path: Path) -> None:
    """`cp -a OLD/. DIR/`, which keeps the files too, with another content."""
    copy(old, path)


def beside_and_renamed(old: Path, path: Path) -> None:
    """As `rsync -a --delete` does."""
    for entry in [entry for entry in path.rglob("*") if entry.is_file() and not (old / entry.relative_to(path)).exists()]:
        entry.unlink()
    for entry in [entry for entry in old.rglob("*") if entry.is_file()]:
        target = path / entry.relative_to(old)
        before = target.stat() if target.exists() else None
        if before is None or (before.st_size, int(before.st_mtime)) != (entry.stat().st_size, int(entry.stat().st_mtime)):
            shutil.copy2(entry, target.with_name(".new"))
            target.with_name(".new").rename(target)


def unpacked(old: Path, path: Path) -> None:
    """`tar x` over it."""
    archive = subprocess.run(["tar", "-C", str(old), "-c", "."], check=True, capture_output=True).stdout
    subprocess.run(["tar", "-C", str(path), "-x"], check=True, input=archive)


def emptied(old: Path, path: Path) -> None:
    """Files may have the numbers that they had before."""
    for entry in [entry for entry in path.rglob("*") if entry.is_file()]:
        entry.unlink()
    copy(old, path)


WAYS = [into_the_files, beside_and_renamed, unpacked, emptied]


def aged(path: Path) -> None:
    """The copy was made a while ago: some tools look at whole seconds to see whether a file changed."""
    for entry in path.rglob("*"):
        os.utime(entry, ns=(entry.stat().st_atime_ns, entry.stat().st_mtime_ns - 10**10))


@pytest.mark.parametrize("put_back", WAYS)
def test_an_older_copy_that_is_put_back_is_another_disk(tmp_path: Path, put_back: Callable[[Path, Path], None]) -> None:
    path, old = tmp_path / "one", tmp_path / "old"
    write_log(path, HISTORY)
    before = identity_of(path)
    copy(path, old)
    aged(old)
    directory = opened_here(path)
    LogWriter.open(directory, SMALL)
    kill(directory)  # before it wrote anything
    put_back(old, path)
    assert "was restored from one" in (renewed := start(path))
    assert disk_remedy(GATEWAY) in renewed
    after = identity_of(path)
    assert (after.incarnation == before.incarnation, after.place == before.place) == (False, True)
    assert start(path) == ""
    assert identity_of(path).incarnation == after.incarnation


def until_noted(writer: LogWriter, path: Path) -> None:
    """Have the disk rest until the identity is written anew."""
    before = identity_of(path)
    while identity_of(path) == before:
        writer.idle()
        time.sleep(0.002)


def test_what_is_noted_is_noted_in_a_rest_and_not_between_records(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Proves that a short pause of what comes steadily is not taken for one, as that takes syncs of several files."""
    monkeypatch.setattr(limits, "IDENTITY_FRESH_US", 0)
    monkeypatch.setattr(limits, "IDENTITY_IDLE_US", 50_000)
    writer, _ = LogWriter.open(opened_here(tmp_path), SMALL)
    for frame in HISTORY.frames[:10]:
        writer.append([frame])
        writer.sync()
        before = identity_of(tmp_path)
        while writer.idle():  # until the mark is up to date, 7 ms after the sync
            time.sleep(0.001)
        writer.idle()
        assert identity_of(tmp_path) == before
    until_noted(writer, tmp_path)
    after = identity_of(tmp_path)
    for _ in range(3):
        time.sleep(0.06)
        writer.idle()
    assert identity_of(tmp_path) == after  # nothing was voted for since


@pytest.mark.parametrize("put_back", WAYS)
@pytest.mark.parametrize("since", ["sync", "idle", "promise"])
def test_a_copy_of_a_running_gateways_files_is_told_though_no_start_came_between(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, put_back: Callable[[Path, Path], None], since: str
) -> None:
    path, old = tmp_path / "one", tmp_path / "old"
    monkeypatch.setattr(limits, "IDENTITY_FRESH_BUSY_US" if since == "sync" else "IDENTITY_FRESH_US", 0)
    directory = opened_here(path)
    writer, _ = LogWriter.open(directory, SMALL)
    writer.append(HISTORY.frames[:3])
    writer.sync()
    decide(writer, HISTORY, 1, 3)  # what log it is, is noted with the first
    copy(path, old)
    aged(old)
    if since == "promise":
        writer.write_hard_state(HardState(5, 0, 0))
    else:
        writer.append(HISTORY.frames[3:])
        writer.sync()
    if since == "idle":
        until_noted(writer, path)
    kill(directory)
    assert not copied(path)
    put_back(old, path)
    assert copied(path)


@pytest.mark.parametrize("put_back", WAYS)
def test_a_copy_that_was_made_just_before_a_stop_is_told(tmp_path: Path, put_back: Callable[[Path, Path], None]) -> None:
    path, old = tmp_path / "one", tmp_path / "old"
    write_log(path, HISTORY)
    directory = opened_here(path)
    writer, _ = LogWriter.open(directory, SMALL)
    copy(path, old)
    aged(old)
    writer.close()
    directory.close()
    assert not copied(path)
    put_back(old, path)
    assert copied(path)


def test_one_that_was_put_back_and_was_declared_to_be_the_original_goes_on(tmp_path: Path) -> None:
    path, old = tmp_path / "one", tmp_path / "old"
    write_log(path, HISTORY)
    copy(path, old)
    assert start(path) == ""
    into_the_files(old, path)
    before = identity_of(path).incarnation
    assert declare_moved(path)
    assert not declare_moved(path)
    assert start(path) == ""
    assert identity_of(path).incarnation == before


def test_a_copy_that_is_put_back_before_anything_was_promised_is_the_original(tmp_path: Path) -> None:
    path, old = tmp_path / "one", tmp_path / "old"
    write_log(path, HISTORY)
    copy(path, old)
    into_the_files(old, path)
    assert start(path) == ""


def test_what_people_and_machines_do_to_an_original_makes_no_copy_of_it(tmp_path: Path) -> None:
    """Containers give all files their owner and mode at each start, backups read and link them, folders are renamed."""
    path = tmp_path / "one"
    write_log(path, HISTORY)
    for entry in [path, *path.rglob("*")]:
        os.chown(entry, os.getuid(), os.getgid())
        entry.chmod(0o750)
        os.utime(entry)
        if entry.is_file():
            entry.read_bytes()
            os.link(entry, tmp_path / f"link-{entry.name}")
    path.rename(tmp_path / "two")
    assert start(tmp_path / "two") == ""


def test_a_directory_of_a_release_that_noted_no_file_is_no_copy_and_is_told_from_its_copies_from_then_on(tmp_path: Path) -> None:
    path, old = tmp_path / "one", tmp_path / "old"
    write_log(path, HISTORY)
    file = path / "identity.json"
    told = json.loads(file.read_text())
    assert told.pop("file")
    file.write_text(json.dumps(told))
    assert start(path) == ""
    copy(path, old)
    assert start(path) == ""
    into_the_files(old, path)
    assert copied(path)


# Killed, without power, without room: the original stays the original


class Dying(Storage):
    """A disk whose process ends after so many operations; what it did stays."""

    def __init__(self, left: int) -> None:
        self.left = left

    def _do(self) -> None:
        if not self.left:
            raise KeyboardInterrupt
        self.left -= 1

    def open(self, path: str, *, create: bool = False) -> int:
        self._do()
        return super().open(path, create=create)

    def write(self, fd: int, parts: Sequence[Buffer], at: int) -> None:
        self._do()
        super().write(fd, parts, at)

    def truncate(self, fd: int, size: int) -> None:
        self._do()
        super().truncate(fd, size)

    def sync(self, fd: int) -> None:
        self._do()

    def rename(self, old: str, new: str) -> None:
        self._do()
        super().rename(old, new)

    def sync_directory(self, path: str) -> None:
        self._do()


@pytest.mark.parametrize("begun", [False, True], ids=["the first start", "a later one"])
def test_a_start_that_is_killed_anywhere_leaves_the_original(tmp_path: Path, begun: bool) -> None:
    finished = 0
    path = tmp_path / "one"
    for steps in range(200):
        if begun and not steps:
            write_log(path, HISTORY)
        elif not begun:
            path = tmp_path / str(steps)
        try:
            start(path, Dying(steps))
            finished += 1
        except KeyboardInterrupt:
            if (path / "identity.json").exists():
                assert not copied(path)
        assert start(path) == ""
        assert not copied(path)
        if finished > 3:
            return
    raise AssertionError("no start came to its end")


def test_without_room_a_start_leaves_what_was_noted(tmp_path: Path) -> None:
    write_log(tmp_path, HISTORY)
    noted = identity_of(tmp_path)
    for room in range(5):
        storage = Filling()
        directory = opened_here(tmp_path, storage)
        storage.room = room
        directory.declare_original()
        directory.refresh_identity(0)
        directory.close()
        if room < 3:  # two renames and a write
            assert identity_of(tmp_path) == noted
        assert not copied(tmp_path)
    assert identity_of(tmp_path) != noted


def test_without_room_a_copy_does_not_begin(tmp_path: Path) -> None:
    write_log(tmp_path / "one", HISTORY)
    shutil.copytree(tmp_path / "one", tmp_path / "two")
    storage = Filling()
    directory = opened_here(tmp_path / "two", storage)
    storage.room = 0
    with pytest.raises(OSError, match="No space left"):
        directory.declare_original()
    directory.close()
    assert copied(tmp_path / "two")


@pytest.mark.parametrize("what", ["sync", "sync directory", "rename", "write"])
def test_a_disk_that_fails_while_the_identity_is_noted_anew_ends_the_run_only_if_a_sync_did(tmp_path: Path, what: str) -> None:
    storage = Watched()
    directory = opened_here(tmp_path, storage)
    noted = identity_of(tmp_path)
    storage.fail = failing(what, errno.EIO)
    if what.startswith("sync"):
        with pytest.raises(SyncFailed):
            directory.refresh_identity(0)
    else:
        directory.refresh_identity(0)
        assert identity_of(tmp_path) == noted
    directory.close()
    assert not copied(tmp_path)


# What file systems tell


def test_a_number_that_is_given_again_is_told_by_the_birth(tmp_path: Path) -> None:
    path = tmp_path / "one"
    write_log(path, HISTORY)
    file = path / "identity.json"
    found = file_identity_of(str(file))
    assert found == identity_of(path).file
    for other, fits in [
        (FileIdentity(found.inode + 1, found.born, found.generation), False),
        (FileIdentity(found.inode, found.born + 1, found.generation), not found.born),
        (FileIdentity(7, 5), False),
    ]:
        assert other.matches(found) == fits
    assert not FileIdentity(7, 0, 3).matches(FileIdentity(7, 0, 4))
    assert FileIdentity(7, 0, 3).matches(FileIdentity(7, 5))  # what one kernel told and the other did not says nothing
    assert FileIdentity(7).matches(FileIdentity(7, 0, 4))
    assert FileIdentity(7, 5).matches(FileIdentity(7))
    if found.born:
        told = json.loads(file.read_text())
        told["file"]["born"] -= 1
        file.write_text(json.dumps(told))
        assert copied(path)


def test_a_file_is_born_later_than_one_that_was_there_before(tmp_path: Path) -> None:
    births = []
    for number in range(3):
        (tmp_path / str(number)).touch()
        births.append(file_identity_of(str(tmp_path / str(number))))
        os.utime(tmp_path / str(number), (0, 0))
        (tmp_path / str(number)).rename(tmp_path / f"{number}-renamed")
        assert file_identity_of(str(tmp_path / f"{number}-renamed")) == births[-1]
    assert len({(birth.inode, birth.born, birth.generation) for birth in births}) == 3
    assert sorted(birth.born for birth in births) == [birth.born for birth in births]


def test_where_nothing_but_the_number_is_told_the_original_stays_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tutti.log.files.file_identity._birth_time", lambda fd: 0)
    monkeypatch.setattr("tutti.log.files.file_identity._generation", lambda fd: 0)
    write_log(tmp_path, HISTORY)
    assert start(tmp_path) == ""
    monkeypatch.undo()  # a kernel that tells more
    assert start(tmp_path) == ""


def test_where_the_number_is_made_of_the_path_none_is_noted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tutti.log.files.data_directory.file_identity_of", lambda path: FileIdentity(zlib.crc32(path.encode()) + 1))
    write_log(tmp_path, HISTORY)
    assert identity_of(tmp_path).file is None
    assert start(tmp_path) == ""
