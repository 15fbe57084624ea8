"""What members say to each other about lanes. A lane is the stream of one origin's disk: (gateway number, incarnation).

Frames of a lane are frames as everywhere: `position` counts in the lane, `view` is the attempt, the chain is the lane's own.
"""

from __future__ import annotations

import msgspec

from gateway.data.frame import Frame


class Post(msgspec.Struct, frozen=True, tag=True):
    """Origin to the members of its attempt: the next frames of its lane. An attempt begins with a VIEW that names them."""

    incarnation: bytes
    frames: tuple[Frame, ...]


class Posted(msgspec.Struct, frozen=True, tag=True):
    """Member to origin, YES: the lane is durable here up to the position, its end in this attempt. Cumulative.

    `low` says why the disk takes no batch behind it (NO), empty if it does. `again`: what is behind it came with a gap.
    """

    incarnation: bytes
    attempt: int
    up_to: int
    low: str = ""
    again: bool = False


class Settled(msgspec.Struct, frozen=True, tag=True):
    """Origin to members, CONFIRM: the frame of this attempt at the position is decided, and all before it. Cumulative."""

    incarnation: bytes
    attempt: int
    up_to: int


class LaneEnd(msgspec.Struct, frozen=True, array_like=True):
    """How far a lane is decided at the sender."""

    origin: int
    incarnation: bytes
    decided: int


class LaneEnds(msgspec.Struct, frozen=True, tag=True):
    """Every gateway to its part, in heartbeat time: all lanes that it knows. Who is behind asks for the rest."""

    ends: tuple[LaneEnd, ...]


class LaneFetch(msgspec.Struct, frozen=True, tag=True):
    """Decided frames of a lane are wanted, from this position on."""

    origin: int
    incarnation: bytes
    first: int


class LaneFetched(msgspec.Struct, frozen=True, tag=True):
    """Answer to LaneFetch: decided frames, as many as one read gives."""

    origin: int
    incarnation: bytes
    frames: tuple[Frame, ...]


LaneMessage = Post | Posted | Settled | LaneEnds | LaneFetch | LaneFetched
