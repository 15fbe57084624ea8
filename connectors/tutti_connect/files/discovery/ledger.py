"""SQLite ledger of the known files and their pieces. A piece is a part of one file; pieces are numbered in the order of sending.

The ledger is a plan; only the log shows which rows are copied. Before the connector sends a frame of a piece, the ledger has the
start of this piece and the ends of all earlier pieces on disk. After a restart, the progress in the log contains the last piece and
the position in it, so the ledger knows which pieces are committed (`Ledger.take_over`).
"""

from __future__ import annotations

import os
import secrets
import sqlite3
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any, TypeVar

from tutti.errors import ConfigError, Damaged, Fenced, Unavailable, WrongDirectory, invariant
from tutti_connect.config import writable_directory
from tutti_connect.files import limits
from tutti_connect.files.position import FilePosition

Kind = TypeVar("Kind")
_VERSION = 1
_LOCK_RETRY_S = 0.05
_TABLES = """
CREATE TABLE meta (name TEXT PRIMARY KEY, value) WITHOUT ROWID;
CREATE TABLE files (id INTEGER PRIMARY KEY, name TEXT, inode INTEGER, size INTEGER, changed_ns INTEGER, done INTEGER, row INTEGER,
    mark TEXT, state TEXT, bad INTEGER);
CREATE TABLE pieces (number INTEGER PRIMARY KEY, file INTEGER, ended INTEGER, at INTEGER, row INTEGER, mark TEXT, state TEXT,
    bad INTEGER);
"""


class State(StrEnum):
    """State of a file. Ledgers on disk contain the values, so a new release must not change them."""

    OPEN = "open"  # the file has rows that are not copied, or may get further rows
    COPIED = "taken"  # the whole file is in the log, or in quarantine
    UNREADABLE = "refused"  # the rest of the file is unreadable
    CHANGED = "changed"  # the content changed after it was copied; the connector has logged this and ignores the file
    MISSING = "gone"  # the file is no longer in the directory
    DISPOSING = "away"  # the file is copied and was renamed to its reserved name, so a new file can have its old name


@dataclass(slots=True)
class File:
    """One file.

    Attributes:
        id: number in the ledger; never reused.
        name: path below the directory.
        inode, size, changed_ns: stat fields from when the connector last opened the file.
        done: position up to which the file is in the log: bytes after decompression, or rows of Parquet.
        row: number of lines, or rows, up to that position.
        mark: fingerprint of the content before `done`.
        bad: number of its rows in quarantine.
    """

    id: int
    name: str
    inode: int = 0
    size: int = 0
    changed_ns: int = 0
    done: int = 0
    row: int = 0
    mark: str = ""
    state: State = State.OPEN
    bad: int = 0


@dataclass(slots=True)
class Piece:
    """A part of a file, from position `done` of the file (the end of its copied part) to position `at`.

    Once the piece is committed, its `at`, `row`, `mark`, `state` and `bad` become those of the file. A piece has `ended` when the
    connector has read it to its end.
    """

    number: int
    file: int
    ended: bool = False
    at: int = 0
    row: int = 0
    mark: str = ""
    state: State = State.OPEN
    bad: int = 0


class Ledger:
    """The ledger. `files` holds all entries in memory; `write` makes changes durable. One thread uses it."""

    def __init__(self, directory: str, name: str, *, grows: bool) -> None:
        """Open the ledger, or create it.

        Raises:
            ConfigError: the directory is not writable, or the ledger is for growing files and `grows` is False, or vice versa.
            Unavailable: another process holds the ledger, or a disk write failed.
            Damaged: the file is not a ledger.
        """
        self._path = writable_directory("state", directory) / f"{name}.ledger"
        self.files: dict[int, File] = {}
        self._epoch = 0
        self._files: dict[int, File | None] = {}
        self._pieces: dict[int, Piece | None] = {}
        try:
            self._database = sqlite3.connect(
                self._path, timeout=limits.LEDGER_WAIT_S, isolation_level=None, check_same_thread=False
            )
        except sqlite3.OperationalError as error:
            raise ConfigError(
                f"the ledger {self._path} cannot be opened ({error}): check that the path is a file, and check its owner and mode"
            ) from error
        try:
            with self._converted_errors():
                self._set_write_ahead()
                self._database.execute("PRAGMA synchronous=FULL")  # so that a committed transaction is durable
                self._create("growing" if grows else "complete")
                self.id = str(self._meta("id"))
        except BaseException:
            self._database.close()
            raise

    def _set_write_ahead(self) -> None:
        """Set write-ahead logging; retry for `limits.LEDGER_WAIT_S`, because SQLite's own lock timeout does not apply here."""
        deadline = time.monotonic() + limits.LEDGER_WAIT_S
        while True:
            try:
                self._database.execute("PRAGMA journal_mode=WAL")
            except sqlite3.OperationalError as error:
                if not _is_busy(error) or time.monotonic() >= deadline:
                    raise
                time.sleep(_LOCK_RETRY_S)
            else:
                return

    def _create(self, kind: str) -> None:
        with self._transaction():
            version = self._database.execute("PRAGMA user_version").fetchone()[0]
            if version == 0:
                for statement in _TABLES.split(";"):
                    self._database.execute(statement)
                initial = {"id": secrets.token_hex(8), "kind": kind, "epoch": 0, "piece": 0, "file": 0, "sent": 0}
                self._database.executemany("INSERT INTO meta VALUES (?, ?)", initial.items())
                self._database.execute(f"PRAGMA user_version = {_VERSION}")
        if version > _VERSION:
            raise WrongDirectory(f"{self._path} has version {version}, but this release supports {_VERSION}: use a newer release")
        if self._meta("kind") != kind:
            raise ConfigError(
                f"{self._path} is for {self._meta('kind')} files, but files.grows selects {kind} files: "
                f"give the connector another `name`"
            )

    def take_over(self, position: FilePosition | None, epoch: int, producer: str) -> None:
        """Take over the ledger for an epoch of the producer, and apply the log's progress to it.

        Raises:
            Fenced: a newer instance has taken over the ledger.
            Unavailable: another process holds the ledger, or a disk write failed.
            WrongDirectory: the log's progress refers to a different ledger.
        """
        with self._converted_errors():
            # Take over before reading: afterwards no older instance can write to the ledger.
            with self._transaction():
                self._next_file, self._next_piece, self._sent = (int(self._meta(name)) for name in ("file", "piece", "sent"))
                self._check_progress(position, producer)
                if int(self._meta("epoch")) > epoch:
                    raise Fenced(
                        f"another instance with a newer epoch has taken over the ledger {self._path}, or the ledger was used with "
                        "another log: run only one instance of this connector, and set `gateways` to the log to which the ledger "
                        "belongs"
                    )
                self._database.execute("UPDATE meta SET value = ? WHERE name = 'epoch'", (epoch,))
            self._epoch = epoch
            self._files, self._pieces = {}, {}
            rows = self._database.execute("SELECT * FROM files ORDER BY id")
            self.files = {row[0]: _file_of(*row) for row in rows}
            rows = self._database.execute("SELECT * FROM pieces ORDER BY number")
            pieces = [_piece_of(*row) for row in rows]
        for piece in pieces:
            self._recover_piece(piece, position)
        self.write()

    def _recover_piece(self, piece: Piece, position: FilePosition | None) -> None:
        if position is not None and piece.number < position.piece:
            invariant(piece.ended, f"piece {piece.number} has no end, but the log has records of piece {position.piece}")
            self.apply_piece(piece, sent=True)
        elif position is not None and piece.number == position.piece:
            # End the piece at the log's position, because the rows after it are not committed and must be read again.
            self.apply_piece(
                Piece(piece.number, piece.file, True, position.at, position.row, position.mark, bad=piece.bad), sent=True
            )
        else:
            self._pieces[piece.number] = None

    def _check_progress(self, position: FilePosition | None, producer: str) -> None:
        """Reject another connector's ledger, and one that is older or newer than the log's progress."""
        forget = f"To copy all files again instead, remove the ledger and run `tutti producers forget {producer}`"
        if position is None:
            if self._sent:
                raise WrongDirectory(
                    f"{self._path} records that files were copied, but the log has no producer {producer}: the gateways "
                    f"have another log, or the producer's state was deleted. Give the gateways of the right log, or remove the "
                    f"ledger to copy all files again"
                )
        elif position.ledger != self.id:
            raise WrongDirectory(
                f"{self._path} is not the ledger to which the log's progress (file {position.file}, row {position.row}) belongs. "
                f"Restore the right ledger. {forget}"
            )
        elif not self._sent <= position.piece <= self._next_piece:
            age = "an older copy of the ledger" if position.piece > self._next_piece else "a newer ledger than the log"
            raise WrongDirectory(
                f"{self._path} is {age}, because it has pieces {self._sent} to {self._next_piece}, but the log has piece "
                f"{position.piece} (file {position.file}). Restore the ledger that matches the log. {forget}"
            )

    def new_file(self, name: str) -> File:
        """Add a new file."""
        self._next_file += 1
        file = File(self._next_file, name)
        self.files[file.id] = file
        self.put(file)
        return file

    def put(self, file: File) -> None:
        """Record a change of a file for the next `write`."""
        self._files[file.id] = file

    def remove(self, file: File) -> None:
        """Delete a file's entry."""
        self.files.pop(file.id, None)
        self._files[file.id] = None

    def new_piece(self, file: File) -> Piece:
        """Add a piece that starts after the copied part of the file."""
        self._next_piece += 1
        piece = Piece(self._next_piece, file.id, at=file.done, row=file.row, mark=file.mark, bad=file.bad)
        self.put_piece(piece)
        return piece

    def put_piece(self, piece: Piece) -> None:
        """Record a change of a piece for the next `write`."""
        self._pieces[piece.number] = piece

    def apply_piece(self, piece: Piece, *, sent: bool) -> File | None:
        """Apply a committed piece to its file, and return the file. `sent` is False if the piece has no records."""
        self._pieces[piece.number] = None
        if sent:
            self._sent = max(self._sent, piece.number)
        file = self.files.get(piece.file)
        if file is not None:
            file.done, file.row, file.mark, file.state, file.bad = piece.at, piece.row, piece.mark, piece.state, piece.bad
            self.put(file)
        return file

    @property
    def pending(self) -> bool:
        """True if changes wait for `write`."""
        return bool(self._files or self._pieces)

    def write(self) -> None:
        """Write all recorded changes durably in one transaction.

        Raises:
            Fenced: a newer instance has taken over the ledger.
            Unavailable: another process holds the ledger, or a disk write failed.
        """
        if not self.pending:
            return
        files, pieces = self._files, self._pieces
        with self._converted_errors(), self._transaction():
            if int(self._meta("epoch")) != self._epoch:
                raise Fenced(f"a newer instance of the connector has taken over the ledger {self._path}: run only one instance")
            self._database.executemany("DELETE FROM files WHERE id = ?", [(key,) for key, file in files.items() if file is None])
            self._database.executemany(
                "INSERT OR REPLACE INTO files VALUES (?,?,?,?,?,?,?,?,?,?)", _rows(files.values(), _file_row)
            )
            self._database.executemany(
                "DELETE FROM pieces WHERE number = ?", [(key,) for key, one in pieces.items() if one is None]
            )
            self._database.executemany("INSERT OR REPLACE INTO pieces VALUES (?,?,?,?,?,?,?,?)", _rows(pieces.values(), _piece_row))
            numbers = [(self._next_file, "file"), (self._next_piece, "piece"), (self._sent, "sent")]
            self._database.executemany("UPDATE meta SET value = ? WHERE name = ?", numbers)
        self._files, self._pieces = {}, {}

    def close(self) -> None:
        """Close the file."""
        self._database.close()

    def _meta(self, name: str) -> str | int:
        found: str | int = self._database.execute("SELECT value FROM meta WHERE name = ?", (name,)).fetchone()[0]
        return found

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        self._database.execute("BEGIN IMMEDIATE")
        try:
            yield
            self._database.execute("COMMIT")
        except BaseException:
            if self._database.in_transaction:  # no transaction is open after most disk errors, because SQLite itself rolls back
                self._database.execute("ROLLBACK")
            raise

    @contextmanager
    def _converted_errors(self) -> Iterator[None]:
        """Convert SQLite's errors in the block to `TuttiError`."""
        try:
            yield
        except sqlite3.OperationalError as error:
            if _is_busy(error):
                raise Unavailable(
                    f"{self._path}: another process has held the ledger for {limits.LEDGER_WAIT_S:g} s{self._holders()}: if it is "
                    f"suspended, resume or kill it"
                ) from error
            raise Unavailable(f"{self._path}: {error}: check that its disk is neither full nor read-only") from error
        except (sqlite3.DatabaseError, TypeError, ValueError) as error:
            raise Damaged(f"{self._path} is not a valid ledger ({error}): restore a copy that is as new as the log") from error

    def _holders(self) -> str:
        """Return the processes that lock the ledger, as text for an error message; "" if the kernel reports none."""
        # Do not use fcntl here: closing the file would release this process's own locks on it (a POSIX rule).
        files: set[str] = set()
        pids: set[int] = set()
        for name in (self._path, f"{self._path}-shm"):
            with suppress(OSError):
                found = os.stat(name)
                files.add(f"{os.major(found.st_dev):02x}:{os.minor(found.st_dev):02x}:{found.st_ino}")
        with suppress(OSError):
            fields = [line.split() for line in Path("/proc/locks").read_text().splitlines()]
            pids = {int(one[-4]) for one in fields if one[-5] == "WRITE" and one[-3] in files} - {os.getpid()}
        named = " and ".join(str(pid) for pid in sorted(pids) if pid > 0)
        return f" (process {named})" if named else ""


def _is_busy(error: sqlite3.OperationalError) -> bool:
    """True if another process locks the ledger. The error is PROTOCOL if that process was suspended while it opened the file."""
    return getattr(error, "sqlite_errorcode", 0) & 0xFF in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_PROTOCOL)


def _rows(given: Iterable[Kind | None], row: Callable[[Kind], tuple[object, ...]]) -> list[tuple[object, ...]]:
    return [row(one) for one in given if one is not None]


def _file_of(*row: Any) -> File:
    *plain, state, bad = row
    file = File(*plain)
    file.state, file.bad = State(state), bad
    return file


def _piece_of(*row: Any) -> Piece:
    number, file, ended, at, lines, mark, state, bad = row
    return Piece(number, file, bool(ended), at, lines, mark, State(state), bad)


def _file_row(file: File) -> tuple[object, ...]:
    return (
        file.id, file.name, file.inode, file.size, file.changed_ns, file.done, file.row, file.mark, str(file.state), file.bad,
    )  # fmt: skip


def _piece_row(piece: Piece) -> tuple[object, ...]:
    return piece.number, piece.file, piece.ended, piece.at, piece.row, piece.mark, str(piece.state), piece.bad
