"""Who is told of what happens on disks: the checkers, and tests."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from tutti.data.frames.frame import Frame
from tutti.data.hard_state import HardState
from tutti.data.log_state import LogState

if TYPE_CHECKING:
    from tests.sim.disk import Disk


class Watch(Protocol):
    """What is told of every disk as it happens."""

    def written(self, disk: Disk, frames: tuple[Frame, ...]) -> None:
        """Frames went into the log."""

    def cut(self, disk: Disk, behind: int) -> None:
        """The log is about to be cut behind the position."""

    def scalars_written(self, disk: Disk, scalars: HardState) -> None:
        """Scalars are about to become durable."""

    def replaced(self, disk: Disk, state: LogState) -> list[Frame]:
        """The log is about to be replaced by a state; the frames that it stands for."""
