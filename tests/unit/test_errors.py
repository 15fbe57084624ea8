"""Tests of operating system errors: the message has fitting advice wherever a path is opened."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from tutti import Producer
from tutti.errors import TuttiError, remedy
from tutti.log.files.data_directory import open_directory
from tutti.security.user_files import read_toml
from tutti_connect.quarantine import Quarantine
from tutti_gateway.config.loader import load_config


@pytest.mark.parametrize(
    ("code", "advice"),
    [
        (errno.EIO, "check the kernel log"),
        (errno.EROFS, "is read-only"),
        (errno.ENOSPC, "free space"),
        (errno.EDQUOT, "quota"),
        (errno.EMFILE, "ulimit -n"),
        (errno.ENFILE, "fs.file-max"),
        (errno.ENAMETOOLONG, "check the path"),
        (errno.ENOTDIR, "check the path"),
        (errno.EACCES, "its owner and mode"),
        (errno.EPERM, "its owner and mode"),
        (errno.ENOENT, "check the path"),
    ],
)
def test_the_advice_fits_the_error(code: int, advice: str) -> None:
    assert advice in remedy(OSError(code, os.strerror(code)))


@pytest.mark.parametrize(
    ("patched", "use"),
    [
        ("os.open", load_config),
        ("os.open", lambda path: read_toml(path, "made by hand")),
        ("os.makedirs", lambda path: Quarantine(str(path))),
        ("tutti.log.files.data_directory.read_file", lambda path: open_directory(str(path), gateway="g1", group="g")),
        ("tutti.log.files.data_directory._lock", lambda path: open_directory(str(path), gateway="g1", group="g")),
        ("tutti.spool.store.take_lock", lambda path: Producer("tutti://127.0.0.1:1", "p", spool=path)),
    ],
)
def test_a_failing_disk_is_no_matter_of_owner_and_mode(
    patched: str, use: Callable[[Path], object], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO), str(tmp_path))

    monkeypatch.setattr(patched, fail)
    with pytest.raises(TuttiError, match=r"(?i)input/output error.*the disk or its file system failed: check the kernel log"):
        use(tmp_path / "place")
