"""Decision tables for a batch: one at the origin, one at the coordinator.

The principle of both tables is that clients get their answers from the log (protocol/order, O12). If the log holds the reason
against a batch (a duplicate, a newer epoch, an abort), the coordinator ignores the batch. The origin answers its client only when
that reason is decided in the *origin's* log. If sequences are missing before a batch, or a part of the batch is already in the log,
the coordinator requests batches again (RESEND), but only when all frames of the producer are decided.
"""

from __future__ import annotations

import enum

from tutti_gateway.core.order.received_table import LineState


class Relation(enum.Enum):
    """Position of a batch relative to the epoch and the highest sequence of its producer."""

    OLDER = "of an older epoch"
    NEWER = "of an epoch that has not begun"
    COVERED = "already in the log"
    OVERLAP = "partly in the log"
    NEXT = "next in sequence"
    GAP = "after a gap"


def relation(epoch: int, first: int, last: int, line_epoch: int, line_sequence: int) -> Relation:
    """Return the relation of a batch, given its epoch, first and last sequence, to its producer's epoch and highest sequence."""
    if epoch != line_epoch:
        return Relation.OLDER if epoch < line_epoch else Relation.NEWER
    if last <= line_sequence:
        return Relation.COVERED
    if first <= line_sequence:
        return Relation.OVERLAP
    return Relation.NEXT if first == line_sequence + 1 else Relation.GAP


class Admission(enum.Enum):
    """What the origin does with a batch that a client submits."""

    FORWARD = "forward it"
    DUPLICATE = "Duplicate"
    ABORTED = "Aborted"
    FENCED = "Fenced"
    EXPECTED = "Expected"
    REFUSED = "Refused"


#: Decisions of the origin, based on its decided log. The key is (True if an ABORT closed the epoch, relation of the batch).
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
    """What the coordinator does with a forwarded batch."""

    ORDER = "order it"
    IGNORE = "ignore it; the log answers"
    RESEND = "request it again when all frames of the producer are decided"
    REFUSE = "refuse it"


class Seen(enum.Enum):
    """State of an epoch at the coordinator: a state that the log shows (`LineState`), or `AWAITED`, which it does not show."""

    OPEN = "open"
    AWAITED = "awaited"  # a request for the next epoch waits until all frames of this epoch are decided
    OPENING = "opening"
    CLOSED = "closed"


def seen(state: LineState, awaited: bool) -> Seen:
    """Return the state of an epoch at the coordinator. `awaited` is True if the producer's request for the next epoch waits."""
    return Seen.AWAITED if awaited and state is LineState.OPEN else Seen[state.name]


#: Decisions of the coordinator, based on the end of its log, undecided frames included.
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
