"""Phases of a lane's origin, before, during and between attempts, as a state table. A transition that is absent is illegal."""

from __future__ import annotations

import enum


class Phase(enum.Enum):
    """Phase of a lane's origin, before, during and between attempts."""

    NONE = "no attempt yet"
    ENDING = "writing the end of the last attempt"
    COLLECTING = "waiting for reports of the members"
    OPEN = "in an attempt"
    RESUMED = "in the last attempt again, after a lost end"


class Input(enum.Enum):
    """Input that moves the origin to another phase."""

    END = "a new attempt is due"
    DURABLE = "persisted"
    REPORTED = "all members reported / the wait is over"
    RECOVERED = "a lost end is recovered"


#: The end of an attempt is a NO, which a crash can undo until it is durable, so a new attempt waits for the disk (lanes, U13).
#: If the disk lost the lane's end, the last attempt continues first, because no frame of that attempt has a NO (lanes, U33).
ATTEMPT: dict[tuple[Phase, Input], Phase] = {
    (Phase.NONE, Input.END): Phase.ENDING,
    (Phase.NONE, Input.RECOVERED): Phase.RESUMED,
    (Phase.RESUMED, Input.END): Phase.ENDING,
    (Phase.ENDING, Input.DURABLE): Phase.COLLECTING,
    (Phase.COLLECTING, Input.REPORTED): Phase.OPEN,
    (Phase.OPEN, Input.END): Phase.ENDING,
}

VOTING = frozenset({Phase.OPEN, Phase.RESUMED})  # phases in which a member's YES counts
