"""Between which attempts the origin of a lane is, as a table: what is absent is illegal."""

from __future__ import annotations

import enum


class Phase(enum.Enum):
    """Where the origin is between two attempts."""

    NONE = "no attempt yet"
    ENDING = "writing that the last attempt is over"
    ASKING = "hearing how far its members are"
    OPEN = "in an attempt"
    RESUMED = "in the last attempt again, of which the disk lost a part"


class Input(enum.Enum):
    """What moves it."""

    END = "members changed / one said NO"
    DURABLE = "persisted"
    HEARD = "all told their ends / waited long enough"
    LEARNED = "all that may be decided of a lost end is known"


#: An attempt begins only when the end of the one before it is durable: that is the NO which alone ends it. Where the disk lost the
#: lane's end the last attempt goes on first.
ATTEMPT: dict[tuple[Phase, Input], Phase] = {
    (Phase.NONE, Input.END): Phase.ENDING,
    (Phase.NONE, Input.LEARNED): Phase.RESUMED,
    (Phase.RESUMED, Input.END): Phase.ENDING,
    (Phase.ENDING, Input.DURABLE): Phase.ASKING,
    (Phase.ASKING, Input.HEARD): Phase.OPEN,
    (Phase.OPEN, Input.END): Phase.ENDING,
}

VOTING = frozenset({Phase.OPEN, Phase.RESUMED})  # where a member's YES counts
