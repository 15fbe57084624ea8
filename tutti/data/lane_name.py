"""Name of a lane (design, section 7): the number of its origin, and the incarnation of the origin's disk."""

from __future__ import annotations

import re
from typing import NamedTuple

#: Remedy for a gateway whose own lane has halted. The gateway keeps its directory, so no copy of the ordered log is lost.
NEW_LANE_REMEDY = (
    "give the gateway a new lane: run `tutti members remove` and `tutti members add` for it, and restart it with the same "
    "directory (in a group of one, add a second gateway first)"
)
_TEXT = re.compile(r"(0|[1-9][0-9]{0,4})-([0-9a-f]{32})\Z")


class LaneName(NamedTuple):
    """The name of a lane: `origin` is the gateway's number, and `incarnation` is the uuid of the gateway's disk (16 bytes)."""

    origin: int
    incarnation: bytes

    @property
    def text(self) -> str:
        """The name as NUMBER-INCARNATIONHEX, which messages, Flight tickets and folder names use."""
        return f"{self.origin}-{self.incarnation.hex()}"

    @classmethod
    def parse(cls, text: str) -> LaneName | None:
        """Parse the name of a lane. Return None if `text` is not such a name."""
        found = _TEXT.match(text)
        return cls(int(found[1]), bytes.fromhex(found[2])) if found else None
