"""Tests of reserved descriptors: a process can open its own files although the system's limit is exhausted."""

from __future__ import annotations

import contextlib
import errno
import itertools
import os
import resource
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tutti import limits
from tutti.log.files.layout import LOG, list_positions
from tutti.log.format.frame_iterator import SegmentMap
from tutti.runtime import reserved_fds
from tutti.runtime.reserved_fds import reserve_descriptors, with_descriptor_wait, with_reserved_descriptor


@pytest.fixture
def used_up(tmp_path: Path) -> Iterator[None]:
    """All that the system gives are taken, once the test has its directory; those set aside lie above what others left open."""
    assert tmp_path.is_dir()
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    highest = max(int(name) for name in os.listdir("/proc/self/fd"))
    resource.setrlimit(resource.RLIMIT_NOFILE, (200 + 2 * highest, before[1]))
    with contextlib.ExitStack() as taken:
        taken.callback(resource.setrlimit, resource.RLIMIT_NOFILE, before)
        taken.callback(reserved_fds._bounds.clear)
        reserve_descriptors()
        with contextlib.suppress(OSError):
            while True:
                taken.callback(os.close, os.dup(0))
        yield


@pytest.mark.usefixtures("used_up")
def test_reserved_descriptors_are_for_files_alone(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="Too many"):
        os.dup(0)
    fds = [with_reserved_descriptor(lambda: os.open(tmp_path, os.O_RDONLY)) for _ in range(10)]
    with pytest.raises(OSError, match="Too many"):
        os.dup(0)
    for fd in fds:
        os.close(fd)
    with pytest.raises(FileNotFoundError):
        with_reserved_descriptor(lambda: os.open(tmp_path / "none", os.O_RDONLY))


@pytest.mark.usefixtures("used_up")
def test_a_segment_is_mapped_with_them(tmp_path: Path) -> None:
    path = str(tmp_path / "segment")
    fd = with_reserved_descriptor(lambda: os.open(path, os.O_RDWR | os.O_CREAT))
    os.write(fd, bytes(5000))
    os.close(fd)
    assert SegmentMap(path, 1).size == 5000


@pytest.mark.usefixtures("used_up")
def test_without_free_reserved_descriptors_the_next_one_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "FILES_RETRY_US", 1000)
    tries = []

    def none_twice() -> int:
        tries.append(1)
        if len(tries) < 5:
            raise OSError(errno.EMFILE, "none left")
        return 7

    assert with_descriptor_wait(none_twice) == 7
    monkeypatch.setattr(limits, "FILES_WAIT_US_MAX", 0)
    tries.clear()
    with pytest.raises(OSError, match="none left"):
        with_descriptor_wait(none_twice)


def test_a_blocked_process_does_not_count_as_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    """A gateway that was stopped while its log waited for a descriptor was halted when it went on."""
    monkeypatch.setattr(limits, "FILES_RETRY_US", 1000)
    clock = itertools.count(step=3600)
    monkeypatch.setattr(time, "monotonic", lambda: float(next(clock)))
    tries = iter([errno.EMFILE, errno.ENFILE, errno.EMFILE])

    def none_for_a_while() -> int:
        for number in tries:
            raise OSError(number, os.strerror(number))
        return 7

    assert with_descriptor_wait(none_for_a_while) == 7


def test_the_files_of_a_log_are_listed_when_there_is_a_descriptor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A trim that found none ended all writing."""
    (tmp_path / LOG).mkdir()
    (tmp_path / LOG / f"{1:020d}.seg").touch()
    real, tries = os.listdir, iter([1, 1, 1])

    def listdir(path: str) -> list[str]:
        if next(tries, 0):
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        return real(path)

    monkeypatch.setattr(os, "listdir", listdir)
    assert list_positions(str(tmp_path), "seg") == [1]
