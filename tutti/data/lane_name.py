"""How a lane is called (design, section 7): by the number of its origin and the incarnation of the origin's disk."""

from __future__ import annotations

import re
from typing import NamedTuple

#: How a gateway whose own lane has halted gets another one. It keeps its disk, and so a group of any size keeps the ordered log.
NEW_LANE = (
    "give the gateway a new lane: `tutti members remove` it, `tutti members add` it again, and restart it with the directory that "
    "it has (a group of one adds a second gateway first)"
)
_TEXT = re.compile(r"(0|[1-9][0-9]{0,4})-([0-9a-f]{32})\Z")


class LaneName(NamedTuple):
    """The lane of one disk: `origin` is the gateway's number, `incarnation` has 16 bytes."""

    origin: int
    incarnation: bytes

    @property
    def text(self) -> str:
        """NUMBER-INCARNATIONHEX: in messages, in tickets, and as the name of a folder."""
        return f"{self.origin}-{self.incarnation.hex()}"

    @classmethod
    def parse(cls, text: str) -> LaneName | None:
        """The lane that a text names; None if it names none."""
        found = _TEXT.match(text)
        return cls(int(found[1]), bytes.fromhex(found[2])) if found else None
