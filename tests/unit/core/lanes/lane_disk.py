"""The disk of one gateway in the lane tests: what it keeps of a lane, and what it may lose of the end of its own lane."""

from __future__ import annotations

from dataclasses import dataclass, field

import msgspec

from tutti.data.frames.bodies import LaneViewBody, decode_body
from tutti.data.frames.frame import Frame, Kind
from tutti_gateway.core.protocol.actions import PersistLane
from tutti_gateway.core.protocol.events import LaneLog, Lines, LostEnd

Key = tuple[int, bytes]


@dataclass
class LaneDisk:
    """One lane on one disk. `delivered` is known lazily.

    Attributes:
        named: up to where a mark says for certain that it was durable.
        lost: what it lost of its end; had: up to where frames stood there before.
        heals: the attempt that is resumed; until a later one is promised more than what was lost may be missing.
    """

    frames: list[Frame] = field(default_factory=list)
    attempt: int = 0
    delivered: int = 0
    halted: str = ""
    named: int = 0
    lost: LostEnd | None = None
    had: int = 0
    heals: int = 0

    def lose(self, first: int, marked: int) -> None:
        """Lose everything from a position on, with a mark at a later one."""
        at, before = self.frames[marked - 1], self.frames[: first - 1]
        view = next(frame for frame in reversed(before) if frame.kind == Kind.VIEW)
        body = decode_body(LaneViewBody, view.body)
        self.had = len(self.frames)
        self.attempt = self.heals = max(self.attempt, self.frames[-1].view)
        self.lost = LostEnd(first, marked, at.view, at.header_crc, self.attempt, body.members, disks=body.disks)
        self.frames = before
        self.delivered = min(self.delivered, len(before))

    def found_lost(self) -> LostEnd | None:
        """Return the loss that a start finds: less than at first if some frames were recovered."""
        if not self.heals or self.heals != self.attempt:
            return None
        last = self.frames[-1]
        view = next(frame for frame in reversed(self.frames) if frame.kind == Kind.VIEW)
        body = decode_body(LaneViewBody, view.body)
        if self.lost is not None and self.lost.last > last.position:
            return msgspec.structs.replace(self.lost, first=last.position + 1, members=body.members, disks=body.disks)
        where = last.position + 1, last.position, last.view, last.header_crc
        return LostEnd(*where, self.attempt, body.members, disks=body.disks)

    def apply(self, action: PersistLane, frames: int | None = None) -> None:
        """Carry a write out, or only its first frames."""
        if action.cut is not None:
            del self.frames[action.cut :]
        for frame in action.frames[:frames]:
            assert frame.position == len(self.frames) + 1, f"{frame!r} is written behind {len(self.frames)}"
            self.frames.append(frame)
        if frames is None and action.attempt is not None:
            self.attempt = action.attempt
            self.named = len(self.frames)

    def log(self, key: Key) -> LaneLog:
        """Return what a start finds: everything up to `delivered`, and the tail."""
        at = self.delivered
        before = self.frames[:at]
        lines: Lines = {frame.producer: (frame.epoch, frame.last_sequence) for frame in before if frame.kind == Kind.BATCH}
        lost, last = self.found_lost(), self.frames[-1].view if self.frames else 0
        return LaneLog(
            origin=key[0],
            incarnation=key[1],
            attempt=last if lost is not None else max(self.attempt, last),
            lost=lost,
            position=at,
            chain=before[-1].header_crc if before else 0,
            offset=sum(frame.count for frame in before),
            tail=tuple(self.frames[at:]),
            lines=lines,
            halted=self.halted,
        )
