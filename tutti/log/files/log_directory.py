"""Where a log lives: what its writer needs of the directory that it writes."""

from __future__ import annotations

from typing import Protocol

from tutti.log.files.storage import Storage


class Home(Protocol):
    """A directory that one process writes: a gateway's (`directory.Directory`), or that of a lane in it (`lanes.LaneHome`)."""

    path: str
    storage: Storage

    @property
    def copied(self) -> bool:
        """Whether it is a copy of the directory that its identity was written for."""

    @property
    def incarnation(self) -> bytes:
        """16 bytes that name this disk."""

    @property
    def log(self) -> bytes:
        """Uuid of the log, 16 bytes, empty until it has begun."""

    def remember_log(self, log: bytes) -> None:
        """Write down which log the directory holds, once it has durably begun."""

    def settle(self) -> None:
        """The directory is what its original was; done before anything is promised."""

    def freshen(self, after_us: int) -> None:
        """Something was promised or voted for: have that told from copies made before, if that was last done so long ago."""

    def rested(self, after_us: int) -> None:
        """The disk rests: have that told, if something was since it was done, so long ago."""

    def renew(self) -> None:
        """The directory becomes another disk, as it holds files of an earlier time."""

    def close(self) -> None:
        """Let the directory go."""
