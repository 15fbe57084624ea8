"""Interface between a log's writer and the directory that it writes."""

from __future__ import annotations

from typing import Protocol

from tutti.log.files.storage import Storage


class LogDirectory(Protocol):
    """A directory with one writer process: a gateway's data directory (`data_directory.Directory`), or that of a lane in it."""

    path: str
    storage: Storage

    @property
    def copied(self) -> bool:
        """True if the directory is a copy of the one that its identity describes."""

    @property
    def incarnation(self) -> bytes:
        """Uuid of this disk, 16 bytes."""

    @property
    def log(self) -> bytes:
        """Uuid of the log, 16 bytes; empty until the log exists."""

    def remember_log(self, log: bytes) -> None:
        """Store the uuid of the log, once the log durably exists."""

    def settle(self) -> None:
        """Declare this directory the original, before any promise."""

    def freshen(self, after_us: int) -> None:
        """Make copies made before the latest promise or vote detectable, if the last such write is older than `after_us`."""

    def rested(self, after_us: int) -> None:
        """Call `freshen` if a promise or vote followed the last identity write; for an idle disk."""

    def renew(self) -> None:
        """Turn the directory into a new disk, because it holds outdated files."""

    def close(self) -> None:
        """Release the directory."""
