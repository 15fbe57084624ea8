"""Phases of a member as a state table: from start to stop, and through every view change (protocol/lifecycle)."""

from __future__ import annotations

import enum


class Phase(enum.Enum):
    """What a member is doing, from its start to its stop."""

    BORN = "born"
    # the member is in no view: it searches for one, copies decided frames, or waits for its turn to propose
    SEARCHING = "searching"
    PROMISING = "promising"  # the disk writes the promise of a higher view
    COLLECTING = "collecting"  # the candidate collects the states of the other logs
    PROMISED = "promised"  # the member has reported its log, and waits until the candidate chooses a log
    ADOPTING = "adopting"  # the member makes its log equal to the chosen log
    ACCEPTING = "accepting"  # the log is equal to the chosen log, and the disk writes the acceptance
    GATHERING = "gathering"  # the candidate waits until all members have accepted
    INSTALLING = "installing"  # the view is installed, but its VIEW frame is undecided
    PRIMARY = "primary"  # the VIEW frame and all earlier frames are decided, and the view accepts new messages
    STOPPED = "stopped"
    HALTED = "halted"  # the member takes no part in the group, and serves reads only


class Step(enum.Enum):
    """Event that moves a member to another phase."""

    STARTED = "started"
    UNFIT = "started, and must not take part"
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
    STOP = "nothing in progress, or no member to wait for"
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

#: An absent transition cannot happen.
#: A proposal (own or received), a lost view, a stop or a failed write can interrupt every active phase.
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
