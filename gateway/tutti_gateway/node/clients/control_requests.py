"""Control requests of clients: each is answered at once, or becomes an event for the stack."""

from __future__ import annotations

from typing import Protocol

import msgspec

from tutti import limits as common_limits
from tutti.data.client_protocol import (
    Answer,
    ChangeRoster,
    Denied,
    Done,
    EpochFenced,
    EpochOpened,
    Fence,
    ForceRoster,
    Forget,
    Leave,
    Members,
    OpenProducer,
    OpenTopic,
    Producers,
    SaveOffset,
    Status,
    StatusAnswer,
    Welcome,
)
from tutti.data.names import check_name, check_producer
from tutti.errors import UsageError
from tutti_gateway.core import limits
from tutti_gateway.core.protocol.events import EpochAsked, Event, ForgetAsked, OffsetsAsked, RosterAsked, RosterForced, TopicAsked

INSTANCE_BYTES = 16
INCARNATION_BYTES = 16
CHANGES = ("add", "remove", "replace")
EPOCH_MAX = limits.EPOCH_MAX - 1  # clients may not use the highest epoch, so that a fence always has a higher one left
OFFSET_MAX = 2**63 - 1

Asked = OpenProducer | OpenTopic | SaveOffset | Forget | Fence | Status | Producers | Members | ChangeRoster | ForceRoster | Leave


class StatusDocuments(Protocol):
    """The part of the gateway's status documents that answers client requests."""

    def welcome(self) -> Welcome:
        """Return the answer to Hello."""

    def status(self) -> bytes:
        """Return the status as JSON."""

    def producers(self) -> bytes:
        """Return the table of producers as JSON."""

    @property
    def state(self) -> str:
        """The state of the gateway: `primary`, `minority`, `joining`, `leaving` or `halted`."""

    @property
    def waits(self) -> str:
        """What the gateway waits for before it accepts new records; empty if it does not wait for other gateways."""

    def members(self) -> bytes:
        """Return the gateways of the group as JSON."""

    def epoch_of(self, name: str) -> int:
        """Return the current epoch of a producer, or 0 if the producer is unknown."""

    @property
    def gateway(self) -> str:
        """The gateway's name."""


class TurnDocuments:
    """The documents sent to clients in one turn, each made once however many clients ask for it.

    Attributes:
        tables: bytes of producer tables sent in this turn.
    """

    def __init__(self) -> None:
        """Begin a turn without documents."""
        self._pages: dict[type, bytes] = {}
        self.tables = 0

    def page(self, asked: Status | Producers | Members, books: StatusDocuments) -> bytes:
        """Return the requested document as JSON."""
        kind = type(asked)
        if kind not in self._pages:
            make = {Status: books.status, Producers: books.producers, Members: books.members}[kind]
            self._pages[kind] = make()
        return self._pages[kind]


class PendingFences:
    """Fences that wait for their epoch. A fence begins a new epoch of a producer for an instance that no client has."""

    def __init__(self, entropy: bytes) -> None:
        """Create an empty list of fences; `entropy` is 16 random bytes that serve as the instance of every fence."""
        self._instance = entropy
        self._waiting: dict[tuple[int, int], tuple[str, int]] = {}

    @property
    def waiting(self) -> bool:
        """True if any fence waits."""
        return bool(self._waiting)

    def begin(self, session: int, request: int, name: str, epoch: int) -> EpochAsked:
        """Return the event that fences a producer whose current epoch is `epoch`."""
        self._waiting[session, request] = name, 1
        return EpochAsked(session, request, name, self._instance, epoch + 1)

    def forget(self, session: int) -> None:
        """Delete the fences of a session that has ended."""
        for key in [key for key in self._waiting if key[0] == session]:
            del self._waiting[key]

    def translate(self, session: int, answer: Answer) -> Answer | EpochAsked:
        """Return the answer for the operator, or the event of the next attempt if another epoch began in the meantime."""
        if not isinstance(answer, EpochOpened | EpochFenced | Denied):
            return answer
        waited = self._waiting.pop((session, answer.request), None)
        if waited is None or isinstance(answer, Denied):
            return answer
        if isinstance(answer, EpochOpened):
            return Done(answer.request)
        name, tries = waited
        if tries >= limits.FENCE_TRIES_MAX:
            reason = f"producer {name!r} opened new epochs during all {tries} attempts to fence it; try again"
            return Denied(answer.request, "busy", reason, retry=True)
        self._waiting[session, answer.request] = name, tries + 1
        return EpochAsked(session, answer.request, name, self._instance, answer.epoch + 1)


def take(asked: Asked, session: int, books: StatusDocuments, fences: PendingFences, turn: TurnDocuments) -> Event | msgspec.Struct:
    """Return the event for the stack that a request becomes, or its answer.

    Raises:
        UsageError: a name or a number in the request is invalid; the message names it.
    """
    match asked:
        case OpenProducer(request, name, instance, epoch):
            check_producer(name)
            if len(instance) != INSTANCE_BYTES:
                raise UsageError(f"an instance has {INSTANCE_BYTES} bytes, not {len(instance)}")
            _check_range("epoch", epoch, 1, EPOCH_MAX)
            return EpochAsked(session, request, name, instance, epoch)
        case OpenTopic(request, name):
            return TopicAsked(session, request, check_name("topic", name))
        case SaveOffset(request, reader, offset, back):
            _check_range("offset", offset, 0, OFFSET_MAX)
            return OffsetsAsked(session, request, check_name("reader", reader), offset, back)
        case Forget(request, names):
            if not 1 <= len(names) <= common_limits.DELETE_PRODUCERS_MAX:
                raise UsageError(
                    f"the state of {len(names)} producers cannot be deleted at once: name 1 to {common_limits.DELETE_PRODUCERS_MAX}"
                )
            return ForgetAsked(session, request, tuple(check_producer(name) for name in names))
        case Fence(request, name):
            epoch = books.epoch_of(check_producer(name))
            if not epoch:
                return Denied(request, "unknown", f"no producer is named {name!r}; `tutti producers list` shows all producers")
            return fences.begin(session, request, name, epoch)
        case ChangeRoster():
            return _roster_asked(asked, session)
        case ForceRoster(request, names):
            if not 1 <= len(names) <= common_limits.ROSTER_MAX:
                raise UsageError(f"a forced roster cannot have {len(names)} gateways: name 1 to {common_limits.ROSTER_MAX}")
            return RosterForced(session, request, tuple(check_name("gateway", name) for name in names))
        case Leave(request, name):
            return _leave_asked(request, name, books)
        case Status() | Producers() | Members():
            return StatusAnswer(asked.request, turn.page(asked, books))


def _roster_asked(asked: ChangeRoster, session: int) -> RosterAsked:
    if asked.change not in CHANGES:
        raise UsageError(f"{asked.change!r} is not a change of the roster: use one of {', '.join(CHANGES)}")
    if len(asked.incarnation) not in (0, INCARNATION_BYTES):
        raise UsageError(f"an incarnation has {INCARNATION_BYTES} bytes, not {len(asked.incarnation)}")
    name = check_name("gateway", asked.name)
    return RosterAsked(session, asked.request, asked.change, name, asked.address, asked.incarnation)


def _leave_asked(request: int, name: str, books: StatusDocuments) -> Done | Denied:
    if name == books.gateway:
        return Done(request)
    return Denied(
        request, "name", f"this is gateway {books.gateway!r}, which cannot make {name!r} leave: send the request to {name!r}"
    )


def _check_range(what: str, value: int, low: int, high: int) -> None:
    if not low <= value <= high:
        raise UsageError(f"{what} {value} is not between {low} and {high}")
