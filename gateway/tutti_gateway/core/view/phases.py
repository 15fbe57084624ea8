"""Phases of a member as a state table: from start to stop, and through every view change (protocol/lifecycle)."""

from __future__ import annotations

import enum


class Phase(enum.Enum):
    """What a member does at one time, from its start to its stop."""

    BORN = "born"
    SEARCHING = "searching"  # in no view: searches for a view, copies decided frames, or waits for its turn to propose
    PROMISING = "promising"  # the promise of a higher view is being written
    COLLECTING = "collecting"  # candidate: collects the states of the other logs
    PROMISED = "promised"  # member: has reported its log, and waits for the choice
    ADOPTING = "adopting"  # the log is being made equal to the chosen one
    ACCEPTING = "accepting"  # the log is equal to the chosen one; the acceptance is being written
    GATHERING = "gathering"  # candidate: waits until all members have accepted
    INSTALLING = "installing"  # the view is installed, but its VIEW frame is undecided
    PRIMARY = "primary"  # the VIEW frame and all earlier frames are decided, and new messages are accepted
    STOPPED = "stopped"
    HALTED = "halted"  # takes no part in the group, and serves reads only


class Step(enum.Enum):
    """Input that moves a member to another phase."""

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

#: An absent transition cannot happen. A higher view may be promised in every active phase. No other input interrupts a phase.
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
