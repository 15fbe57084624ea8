"""A member's life as a table: from start to stop, and through every view change (design, section 5)."""

from __future__ import annotations

import enum


class Phase(enum.Enum):
    """Where this member is."""

    BORN = "born"
    SEARCHING = "searching"  # in no view: it looks for one, learns what others decide, or waits for its turn to propose
    PROMISING = "promising"  # a view above all that were seen is being promised
    COLLECTING = "collecting"  # candidate: what do the others' logs hold?
    PROMISED = "promised"  # member: said what its log holds, waits for the log to take
    ADOPTING = "adopting"  # the log is being made that of the view
    ACCEPTING = "accepting"  # the log is that of the view; that it is accepted is being written
    GATHERING = "gathering"  # candidate: waits until all members have accepted
    INSTALLING = "installing"  # the view is installed, its VIEW frame is not decided
    PRIMARY = "primary"  # everything before the VIEW frame is decided, new messages are taken
    STOPPED = "stopped"
    HALTED = "halted"  # takes no part any more, stays up for reads


class Step(enum.Enum):
    """What moves a member."""

    STARTED = "started"
    UNFIT = "started, and may not take part"
    CAMPAIGN = "proposes a view"
    PROPOSED = "a higher view is proposed"
    PROMISED_OWN = "own proposal durably promised"
    PROMISED = "durably promised"
    CHOSEN = "a log is chosen"
    ADOPTED = "holds the log"
    ACCEPTED_OWN = "own view durably accepted"
    ACCEPTED = "durably accepted"
    GATHERED = "all members have accepted"
    DECIDED = "VIEW decided"
    LOST = "view given up"
    STOP = "nothing under way, or nobody to wait for"
    FAILED = "write failed"


_ACTIVE = (
    Phase.SEARCHING,
    Phase.PROMISING,
    Phase.COLLECTING,
    Phase.PROMISED,
    Phase.ADOPTING,
    Phase.ACCEPTING,
    Phase.GATHERING,
    Phase.INSTALLING,
    Phase.PRIMARY,
)

#: What is absent cannot happen. A higher view may be promised wherever a member is; nothing else interrupts.
LIFE: dict[tuple[Phase, Step], Phase] = {
    (Phase.BORN, Step.STARTED): Phase.SEARCHING,
    (Phase.BORN, Step.UNFIT): Phase.HALTED,
    (Phase.PROMISING, Step.PROMISED_OWN): Phase.COLLECTING,
    (Phase.PROMISING, Step.PROMISED): Phase.PROMISED,
    (Phase.COLLECTING, Step.CHOSEN): Phase.ADOPTING,
    (Phase.PROMISED, Step.CHOSEN): Phase.ADOPTING,
    (Phase.ADOPTING, Step.ADOPTED): Phase.ACCEPTING,
    (Phase.ACCEPTING, Step.ACCEPTED_OWN): Phase.GATHERING,
    (Phase.ACCEPTING, Step.ACCEPTED): Phase.INSTALLING,
    (Phase.GATHERING, Step.GATHERED): Phase.INSTALLING,
    (Phase.INSTALLING, Step.DECIDED): Phase.PRIMARY,
    **{(phase, Step.CAMPAIGN): Phase.PROMISING for phase in _ACTIVE},
    **{(phase, Step.PROPOSED): Phase.PROMISING for phase in _ACTIVE},
    **{(phase, Step.LOST): Phase.SEARCHING for phase in _ACTIVE},
    **{(phase, Step.STOP): Phase.STOPPED for phase in (*_ACTIVE, Phase.HALTED)},
    **{(phase, Step.FAILED): Phase.HALTED for phase in (*_ACTIVE, Phase.HALTED)},
}
