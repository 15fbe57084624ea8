"""What becomes of a batch, as two decision tables: at the gateway that it came to, and at the coordinator.

The principle behind both: **the log answers**. The coordinator takes a batch or does not; what it does not take for a reason that
is in the log (a duplicate, a newer epoch, an abort) is answered by the origin when *its* log decides that reason, never before.
Only a gap and an overlap have to be told, and that waits until everything of the producer is decided.
"""

from __future__ import annotations

import enum

from tutti_gateway.core.order.received_table import LineState


class Relation(enum.Enum):
    """How a batch stands to its producer's line."""

    OLDER = "of an older epoch"
    NEWER = "of an epoch that has not begun"
    COVERED = "all of it is there"
    OVERLAP = "part of it is there"
    NEXT = "it follows"
    GAP = "something before it is missing"


def relation(epoch: int, first: int, last: int, line_epoch: int, line_sequence: int) -> Relation:
    """How the batch (epoch, first and last sequence) stands to a line at (epoch, highest sequence)."""
    if epoch != line_epoch:
        return Relation.OLDER if epoch < line_epoch else Relation.NEWER
    if last <= line_sequence:
        return Relation.COVERED
    if first <= line_sequence:
        return Relation.OVERLAP
    return Relation.NEXT if first == line_sequence + 1 else Relation.GAP


class Entrance(enum.Enum):
    """What the origin does with a batch that a client submits."""

    FORWARD = "forward it"
    DUPLICATE = "Duplicate"
    ABORTED = "Aborted"
    FENCED = "Fenced"
    EXPECTED = "Expected"
    REFUSED = "Refused"


#: By what is *decided* here: (epoch closed by an abort, relation).
ENTRANCE: dict[tuple[bool, Relation], Entrance] = {
    (False, Relation.OLDER): Entrance.FENCED,
    (False, Relation.NEWER): Entrance.REFUSED,
    (False, Relation.COVERED): Entrance.DUPLICATE,
    (False, Relation.OVERLAP): Entrance.FORWARD,
    (False, Relation.NEXT): Entrance.FORWARD,
    (False, Relation.GAP): Entrance.FORWARD,
    (True, Relation.OLDER): Entrance.FENCED,
    (True, Relation.NEWER): Entrance.REFUSED,
    (True, Relation.COVERED): Entrance.DUPLICATE,
    (True, Relation.OVERLAP): Entrance.EXPECTED,
    (True, Relation.NEXT): Entrance.ABORTED,
    (True, Relation.GAP): Entrance.ABORTED,
}


class Verdict(enum.Enum):
    """What the coordinator does with a batch that was forwarded."""

    TAKE = "order it"
    LEAVE = "leave it, the log answers"
    RESEND = "ask for it again, once all of the producer is decided"
    REFUSE = "refuse it"


class Seen(enum.Enum):
    """How the coordinator sees an epoch: as the log says (`LineState`), or awaited, which it alone knows while it coordinates."""

    OPEN = "open"
    AWAITED = "awaited"  # the next epoch was asked for and waits until everything of this one is decided
    OPENING = "opening"
    CLOSED = "closed"


def seen(state: LineState, awaited: bool) -> Seen:
    """How the coordinator sees a line; `awaited` says that an EPOCH waits for its frames."""
    return Seen.AWAITED if awaited and state is LineState.OPEN else Seen[state.name]


#: By the line at the log's end.
VERDICT: dict[tuple[Seen, Relation], Verdict] = {
    (Seen.OPEN, Relation.OLDER): Verdict.LEAVE,
    (Seen.OPEN, Relation.NEWER): Verdict.REFUSE,
    (Seen.OPEN, Relation.COVERED): Verdict.LEAVE,
    (Seen.OPEN, Relation.OVERLAP): Verdict.RESEND,
    (Seen.OPEN, Relation.NEXT): Verdict.TAKE,
    (Seen.OPEN, Relation.GAP): Verdict.RESEND,
    (Seen.AWAITED, Relation.OLDER): Verdict.LEAVE,
    (Seen.AWAITED, Relation.NEWER): Verdict.REFUSE,
    (Seen.AWAITED, Relation.COVERED): Verdict.LEAVE,
    (Seen.AWAITED, Relation.OVERLAP): Verdict.LEAVE,
    (Seen.AWAITED, Relation.NEXT): Verdict.LEAVE,
    (Seen.AWAITED, Relation.GAP): Verdict.LEAVE,
    (Seen.OPENING, Relation.OLDER): Verdict.LEAVE,
    (Seen.OPENING, Relation.NEWER): Verdict.REFUSE,
    (Seen.OPENING, Relation.COVERED): Verdict.LEAVE,
    (Seen.OPENING, Relation.OVERLAP): Verdict.REFUSE,
    (Seen.OPENING, Relation.NEXT): Verdict.REFUSE,
    (Seen.OPENING, Relation.GAP): Verdict.REFUSE,
    (Seen.CLOSED, Relation.OLDER): Verdict.LEAVE,
    (Seen.CLOSED, Relation.NEWER): Verdict.REFUSE,
    (Seen.CLOSED, Relation.COVERED): Verdict.LEAVE,
    (Seen.CLOSED, Relation.OVERLAP): Verdict.LEAVE,
    (Seen.CLOSED, Relation.NEXT): Verdict.LEAVE,
    (Seen.CLOSED, Relation.GAP): Verdict.LEAVE,
}
