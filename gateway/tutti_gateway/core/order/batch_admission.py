"""Decision tables for a batch: one at the origin, one at the coordinator.

The principle of both: **the log answers** (protocol/order, O12). If the log holds the reason against a batch (a duplicate, a newer
epoch, an abort), the coordinator ignores the batch. The origin answers its client when that reason is decided in the *origin's*
log, never before. Only a gap or an overlap needs a message, which waits until all frames of the producer are decided.
"""

from __future__ import annotations

import enum

from tutti_gateway.core.order.received_table import LineState


class Relation(enum.Enum):
    """Relation of a batch to its producer's entry."""

    OLDER = "of an older epoch"
    NEWER = "of an epoch that has not begun"
    COVERED = "already in the log"
    OVERLAP = "partly in the log"
    NEXT = "next in sequence"
    GAP = "after a gap"


def relation(epoch: int, first: int, last: int, line_epoch: int, line_sequence: int) -> Relation:
    """Return the relation of a batch (epoch, first and last sequence) to an entry at (epoch, highest sequence)."""
    if epoch != line_epoch:
        return Relation.OLDER if epoch < line_epoch else Relation.NEWER
    if last <= line_sequence:
        return Relation.COVERED
    if first <= line_sequence:
        return Relation.OVERLAP
    return Relation.NEXT if first == line_sequence + 1 else Relation.GAP


class Admission(enum.Enum):
    """Action of the origin for a batch that a client submits."""

    FORWARD = "forward it"
    DUPLICATE = "Duplicate"
    ABORTED = "Aborted"
    FENCED = "Fenced"
    EXPECTED = "Expected"
    REFUSED = "Refused"


#: The decided log determines the action. Key: (True if an ABORT closed the epoch, relation).
ADMISSION: dict[tuple[bool, Relation], Admission] = {
    (False, Relation.OLDER): Admission.FENCED,
    (False, Relation.NEWER): Admission.REFUSED,
    (False, Relation.COVERED): Admission.DUPLICATE,
    (False, Relation.OVERLAP): Admission.FORWARD,
    (False, Relation.NEXT): Admission.FORWARD,
    (False, Relation.GAP): Admission.FORWARD,
    (True, Relation.OLDER): Admission.FENCED,
    (True, Relation.NEWER): Admission.REFUSED,
    (True, Relation.COVERED): Admission.DUPLICATE,
    (True, Relation.OVERLAP): Admission.EXPECTED,
    (True, Relation.NEXT): Admission.ABORTED,
    (True, Relation.GAP): Admission.ABORTED,
}


class Verdict(enum.Enum):
    """Action of the coordinator for a forwarded batch."""

    ORDER = "order it"
    IGNORE = "ignore it; the log answers"
    RESEND = "request it again when all frames of the producer are decided"
    REFUSE = "refuse it"


class Seen(enum.Enum):
    """State of an epoch at the coordinator: a state of the log (`LineState`), or `AWAITED`, which only the coordinator knows."""

    OPEN = "open"
    AWAITED = "awaited"  # the next epoch was requested and waits until all frames of this epoch are decided
    OPENING = "opening"
    CLOSED = "closed"


def seen(state: LineState, awaited: bool) -> Seen:
    """Return the coordinator's state of an entry; `awaited` is True if an EPOCH waits for its frames."""
    return Seen.AWAITED if awaited and state is LineState.OPEN else Seen[state.name]


#: The entry at the end of the log determines the action.
VERDICT: dict[tuple[Seen, Relation], Verdict] = {
    (Seen.OPEN, Relation.OLDER): Verdict.IGNORE,
    (Seen.OPEN, Relation.NEWER): Verdict.REFUSE,
    (Seen.OPEN, Relation.COVERED): Verdict.IGNORE,
    (Seen.OPEN, Relation.OVERLAP): Verdict.RESEND,
    (Seen.OPEN, Relation.NEXT): Verdict.ORDER,
    (Seen.OPEN, Relation.GAP): Verdict.RESEND,
    (Seen.AWAITED, Relation.OLDER): Verdict.IGNORE,
    (Seen.AWAITED, Relation.NEWER): Verdict.REFUSE,
    (Seen.AWAITED, Relation.COVERED): Verdict.IGNORE,
    (Seen.AWAITED, Relation.OVERLAP): Verdict.IGNORE,
    (Seen.AWAITED, Relation.NEXT): Verdict.IGNORE,
    (Seen.AWAITED, Relation.GAP): Verdict.IGNORE,
    (Seen.OPENING, Relation.OLDER): Verdict.IGNORE,
    (Seen.OPENING, Relation.NEWER): Verdict.REFUSE,
    (Seen.OPENING, Relation.COVERED): Verdict.IGNORE,
    (Seen.OPENING, Relation.OVERLAP): Verdict.REFUSE,
    (Seen.OPENING, Relation.NEXT): Verdict.REFUSE,
    (Seen.OPENING, Relation.GAP): Verdict.REFUSE,
    (Seen.CLOSED, Relation.OLDER): Verdict.IGNORE,
    (Seen.CLOSED, Relation.NEWER): Verdict.REFUSE,
    (Seen.CLOSED, Relation.COVERED): Verdict.IGNORE,
    (Seen.CLOSED, Relation.OVERLAP): Verdict.IGNORE,
    (Seen.CLOSED, Relation.NEXT): Verdict.IGNORE,
    (Seen.CLOSED, Relation.GAP): Verdict.IGNORE,
}
