"""Tests of the ledger: another process has it open, or its disk fails at the last moment."""

from __future__ import annotations

import errno
import sqlite3
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from tutti.errors import ConfigError, Damaged, Unavailable
from tutti_connect.files import limits
from tutti_connect.files.discovery.ledger import Ledger

_KEEPS = """
import sqlite3, sys
base = sqlite3.connect(sys.argv[1], isolation_level=None)
base.execute("BEGIN IMMEDIATE")
print("kept", flush=True)
sys.stdin.read()
"""


class FullAtTheEnd(sqlite3.Connection):
    """A disk that is full for one commit."""

    full = False

    def execute(self, statement: str, *given: Any) -> sqlite3.Cursor:
        if statement == "COMMIT" and self.full:
            self.full = False
            raise sqlite3.OperationalError("database or disk is full")
        return super().execute(statement, *given)


def test_a_process_that_keeps_it_is_named_and_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Proves it for a start, and for a running instance, which keeps everything it had recorded."""
    monkeypatch.setattr(limits, "LEDGER_WAIT_S", 0.1)
    ledger = Ledger(str(tmp_path), "orders", grows=False)
    ledger.take_over(None, 1, "orders")
    keeper = [sys.executable, "-c", _KEEPS, str(tmp_path / "orders.ledger")]
    with subprocess.Popen(keeper, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == b"kept\n"
        said = rf"orders\.ledger: another process has held the ledger for 0\.1 s \(process {other.pid}\): if it is suspended"
        with pytest.raises(Unavailable, match=said):
            Ledger(str(tmp_path), "orders", grows=False)
        ledger.new_file("a")
        with pytest.raises(Unavailable, match=said):
            ledger.write()
        assert ledger.pending
        other.communicate()
    ledger.write()
    ledger.take_over(None, 2, "orders")
    assert [file.name for file in ledger.files.values()] == ["a"]
    ledger.close()


def test_a_ledger_that_another_one_is_just_making_is_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Proves it for a file that does not write ahead yet, of which SQLite tells without waiting."""
    monkeypatch.setattr(limits, "LEDGER_WAIT_S", 0.5)
    keeper = [sys.executable, "-c", _KEEPS, str(tmp_path / "orders.ledger")]
    with subprocess.Popen(keeper, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == b"kept\n"
        began = time.monotonic()
        with pytest.raises(Unavailable, match=rf"another process has held the ledger for 0\.5 s \(process {other.pid}\)"):
            Ledger(str(tmp_path), "orders", grows=False)
        assert time.monotonic() - began >= limits.LEDGER_WAIT_S
        monkeypatch.setattr(limits, "LEDGER_WAIT_S", 30.0)
        assert other.stdin is not None
        ends = threading.Timer(0.1, other.stdin.close)
        ends.start()
        Ledger(str(tmp_path), "orders", grows=False).close()
        ends.join()


def test_a_ledger_that_is_refused_keeps_no_connection(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    connect = sqlite3.connect
    made: list[sqlite3.Connection] = []

    def opened(*given: Any, **options: Any) -> sqlite3.Connection:
        made.append(connect(*given, **options))
        return made[-1]

    monkeypatch.setattr(sqlite3, "connect", opened)
    (tmp_path / "orders.ledger").write_bytes(b"rubbish" * 1000)
    with pytest.raises(Damaged):
        Ledger(str(tmp_path), "orders", grows=False)
    with pytest.raises(sqlite3.ProgrammingError, match="closed"):
        made[0].execute("SELECT 1")


def test_a_commit_that_fails_is_undone_and_can_be_done_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Proves that the connection is not left within a transaction, which would refuse every later one."""
    connect, made = sqlite3.connect, []

    def opened(*given: Any, **options: Any) -> FullAtTheEnd:
        made.append(connect(*given, factory=FullAtTheEnd, **options))
        return made[-1]

    monkeypatch.setattr(sqlite3, "connect", opened)
    ledger = Ledger(str(tmp_path), "orders", grows=False)
    ledger.take_over(None, 1, "orders")
    ledger.new_file("a")
    made[0].full = True
    with pytest.raises(Unavailable, match="disk is full: check that its disk is neither full nor read-only"):
        ledger.write()
    assert not made[0].in_transaction
    ledger.write()
    ledger.take_over(None, 2, "orders")
    assert [file.name for file in ledger.files.values()] == ["a"]
    ledger.close()


def test_an_unusable_state_directory_is_reported_like_a_quarantine(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "orders.ledger").mkdir()
    for directory, told in (
        ("/proc/none", "state /proc/none: No such file or directory: choose a writable directory"),
        (f"{tmp_path}/file", f"state {tmp_path}/file: File exists: choose a writable directory"),
        (f"{tmp_path}/file/a", f"state {tmp_path}/file/a: Not a directory: choose a writable directory"),
        (str(tmp_path), f"the ledger {tmp_path}/orders.ledger cannot be opened (unable to open database file): check that "),
    ):
        with pytest.raises(ConfigError) as error:
            Ledger(directory, "orders", grows=False)
        assert str(error.value).startswith(told)


def test_a_read_only_state_directory_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: Any, **__: Any) -> None:
        raise OSError(errno.EROFS, "Read-only file system")

    monkeypatch.setattr(tempfile, "TemporaryFile", refused)
    with pytest.raises(ConfigError, match=r"Read-only file system: its file system is read-only: mount it"):
        Ledger(str(tmp_path), "orders", grows=False)
    assert list(tmp_path.iterdir()) == []
