"""Tests of the reading of user files: it ends soon and within a memory bound for any path, and the error names what is there."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from tutti.errors import ConfigError
from tutti.security import user_files
from tutti.security.certificates import check_certificate
from tutti.security.user_files import FILE_BYTES_MAX, read_limited


def _fifo(path: Path) -> Path:
    os.mkfifo(path)
    return path


def _socket(path: Path) -> Path:
    with socket.socket(socket.AF_UNIX) as one:
        one.bind(str(path))
    return path


def _zeros(path: Path) -> Path:
    path.touch()
    os.truncate(path, 1 << 30)
    return path


def _directory(path: Path) -> Path:
    path.mkdir()
    return path


def _loop(path: Path) -> Path:
    path.symlink_to(path)
    return path


#: What a path may name that is not a file to read, and a word of the error.
HOSTILE: list[tuple[Callable[[Path], Path], str]] = [
    (_fifo, "no input arrived"),
    (_socket, "it is a socket"),
    (_zeros, f"larger than {FILE_BYTES_MAX} bytes"),
    (_directory, "(?i)is a directory"),
    (_loop, "(?i)too many levels of symbolic links"),
    (lambda _: Path("/dev/zero"), f"larger than {FILE_BYTES_MAX} bytes"),
    (lambda path: path / ("x" * 5000), "(?i)file name too long"),
    (lambda path: Path(f"{path}\0"), "zero byte"),
]


@pytest.fixture(autouse=True)
def _short_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(user_files, "FILE_WAIT_S", 0.01)


@pytest.mark.parametrize(("make", "word"), HOSTILE)
def test_a_path_that_is_not_a_readable_file_is_named(make: Callable[[Path], Path], word: str, tmp_path: Path) -> None:
    path = make(tmp_path / "x")
    before = len(os.listdir("/proc/self/fd"))
    with pytest.raises(OSError, match=word) as raised:
        read_limited(path)
    assert raised.value.filename == str(path)
    assert len(os.listdir("/proc/self/fd")) == before


def test_a_file_of_the_largest_size_is_read_whole(tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(b"x" * 10)
    data, found = read_limited(tmp_path / "x", 10)
    assert (data, found.st_size) == (b"x" * 10, 10)
    with pytest.raises(OSError, match="larger than 9 bytes"):
        read_limited(tmp_path / "x", 9)


def test_a_pipe_is_read_to_its_end_whatever_parts_come(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(user_files, "FILE_WAIT_S", 60.0)
    out, into = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(out)
        for _ in range(100):
            os.write(into, b"x" * 5000)
        os._exit(0)
    os.close(into)
    try:
        assert read_limited(f"/dev/fd/{out}")[0] == b"x" * 500_000
    finally:
        os.close(out)
        os.waitpid(child, 0)


def test_a_certificate_that_cannot_be_read_again_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no input arrived"):
        check_certificate(_fifo(tmp_path / "fifo"), tmp_path / "key")
    with pytest.raises(ConfigError, match=r"/dev/null cannot be read \(it is not a regular file"):
        check_certificate("/dev/null", tmp_path / "key")
