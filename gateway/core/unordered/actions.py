"""What the lanes want done and what comes back, parallel to `core/actions.py` and `core/events.py`.

PersistLane goes with Persist (one sync may serve both), ReadLane with ReadLog, DeliverUnordered with Deliver: before the replies.
"""

from __future__ import annotations

import msgspec

from gateway.data.frame import Frame

Lines = dict[int, tuple[int, int]]  # producer -> (epoch, highest sequence in it)


class PersistLane(msgspec.Struct, frozen=True, tag=True):
    """Cut the lane's log behind position `cut` if given, write the frames behind it, and the own lane's `attempt` if given; then
    report `LanePersisted(token)`. A cut is durable before anything later is written; one lane is written in order.
    """

    token: int
    origin: int
    incarnation: bytes
    frames: tuple[Frame, ...] = ()
    attempt: int | None = None
    cut: int | None = None


class ReadLane(msgspec.Struct, frozen=True, tag=True):
    """Read frames `first` to `last` of a lane's log, which holds them durably; then report `LaneRead(token)`. As many as
    `limits.FETCH_BYTES` allows will do, one at least.
    """

    token: int
    origin: int
    incarnation: bytes
    first: int
    last: int


class DeliverUnordered(msgspec.Struct, frozen=True, tag=True):
    """A decided run of a lane, in order: its frontier passes it. `first_offset` is the offset of the first record in the lane."""

    origin: int
    incarnation: bytes
    first_offset: int
    frames: tuple[Frame, ...]


class LanePersisted(msgspec.Struct, frozen=True, tag=True):
    """Everything up to the PersistLane with this token is durable."""

    token: int


class LaneRead(msgspec.Struct, frozen=True, tag=True):
    """What `ReadLane(token)` found: frames from its `first` on; none if they cannot be read."""

    token: int
    frames: tuple[Frame, ...]


class LaneLog(msgspec.Struct, frozen=True, kw_only=True):
    """What a start found of one lane; all of it is durable.

    Attributes:
        origin, incarnation: whose lane it is.
        attempt: of the own lane the highest attempt ever written; of another the attempt of the last frame. 0 before any.
        position, chain, offset: last position that was delivered, its chain value, and the offset of the next record behind it.
        tail: the frames behind it.
        lines: of the own lane, the producers up to `position`.
    """

    origin: int
    incarnation: bytes
    attempt: int = 0
    position: int = 0
    chain: int = 0
    offset: int = 0
    tail: tuple[Frame, ...] = ()
    lines: Lines = msgspec.field(default_factory=dict)
