"""Control messages of clients: what can be answered at once is, the rest becomes an event for the stack."""

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
EPOCH_MAX = limits.EPOCH_MAX - 1  # by a client: a fence still finds one above it
OFFSET_MAX = 2**63 - 1

Asked = OpenProducer | OpenTopic | SaveOffset | Forget | Fence | Status | Producers | Members | ChangeRoster | ForceRoster | Leave


class Books(Protocol):
    """What the gateway knows and may tell."""

    def welcome(self) -> Welcome:
        """The answer to Hello."""

    def status(self) -> bytes:
        """Status as JSON."""

    def producers(self) -> bytes:
        """The received-table as JSON."""

    @property
    def state(self) -> str:
        """`primary`, `minority`, `joining`, `leaving` or `halted`."""

    @property
    def waits(self) -> str:
        """What it waits for where it takes nothing new and others have to act or to come, empty otherwise."""

    def members(self) -> bytes:
        """The gateways of the group as JSON."""

    def epoch_of(self, name: str) -> int:
        """The current epoch of a producer, 0 if it is not known."""

    @property
    def gateway(self) -> str:
        """The gateway's name."""


class Turn:
    """What clients are told in one turn: a page is made once, however many ask for it, and however often.

    Attributes:
        tables: bytes of received-tables that were told.
    """

    def __init__(self) -> None:
        """A turn begins."""
        self._pages: dict[type, bytes] = {}
        self.tables = 0

    def page(self, asked: Status | Producers | Members, books: Books) -> bytes:
        """What is asked for, as JSON."""
        kind = type(asked)
        if kind not in self._pages:
            make = {Status: books.status, Producers: books.producers, Members: books.members}[kind]
            self._pages[kind] = make()
        return self._pages[kind]


class Fences:
    """Fences that wait for their epoch: an operator's fence is an epoch begun for an instance that nobody is."""

    def __init__(self, entropy: bytes) -> None:
        """`entropy`: 16 random bytes; no client has them for an instance."""
        self._instance = entropy
        self._waiting: dict[tuple[int, int], tuple[str, int]] = {}

    @property
    def waiting(self) -> bool:
        """Whether any fence waits."""
        return bool(self._waiting)

    def begin(self, session: int, request: int, name: str, epoch: int) -> EpochAsked:
        """The event that fences a producer whose current epoch is `epoch`."""
        self._waiting[session, request] = name, 1
        return EpochAsked(session, request, name, self._instance, epoch + 1)

    def forget(self, session: int) -> None:
        """The session is gone."""
        for key in [key for key in self._waiting if key[0] == session]:
            del self._waiting[key]

    def translate(self, session: int, answer: Answer) -> Answer | EpochAsked:
        """An answer of the stack as the operator is told, or the next try."""
        if not isinstance(answer, EpochOpened | EpochFenced | Denied):
            return answer
        waited = self._waiting.pop((session, answer.request), None)
        if waited is None or isinstance(answer, Denied):
            return answer
        if isinstance(answer, EpochOpened):
            return Done(answer.request)
        name, tries = waited
        if tries >= limits.FENCE_TRIES_MAX:
            return Denied(answer.request, "busy", f"epochs of {name!r} begin faster than it can be fenced; try again", retry=True)
        self._waiting[session, answer.request] = name, tries + 1
        return EpochAsked(session, answer.request, name, self._instance, answer.epoch + 1)


def take(asked: Asked, session: int, books: Books, fences: Fences, turn: Turn) -> Event | msgspec.Struct:
    """What a request becomes: an event for the stack, or its answer.

    Raises:
        UsageError: a name or a number in it is wrong; the message says which.
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
            if not 1 <= len(names) <= common_limits.FORGET_PRODUCERS_MAX:
                raise UsageError(
                    f"{len(names)} producers cannot be forgotten at once: name 1 to {common_limits.FORGET_PRODUCERS_MAX}"
                )
            return ForgetAsked(session, request, tuple(check_producer(name) for name in names))
        case Fence(request, name):
            epoch = books.epoch_of(check_producer(name))
            if not epoch:
                return Denied(request, "unknown", f"no producer is named {name!r}; `tutti producers list` shows them")
            return fences.begin(session, request, name, epoch)
        case ChangeRoster():
            return _roster_asked(asked, session)
        case ForceRoster(request, names):
            if not 1 <= len(names) <= common_limits.ROSTER_MAX:
                raise UsageError(f"{len(names)} gateways cannot be all that remains: name 1 to {common_limits.ROSTER_MAX}")
            return RosterForced(session, request, tuple(check_name("gateway", name) for name in names))
        case Leave(request, name):
            return _leave_asked(request, name, books)
        case Status() | Producers() | Members():
            return StatusAnswer(asked.request, turn.page(asked, books))


def _roster_asked(asked: ChangeRoster, session: int) -> RosterAsked:
    if asked.change not in CHANGES:
        raise UsageError(f"{asked.change!r} is no change of the roster: it is one of {', '.join(CHANGES)}")
    if len(asked.incarnation) not in (0, INCARNATION_BYTES):
        raise UsageError(f"an incarnation has {INCARNATION_BYTES} bytes, not {len(asked.incarnation)}")
    name = check_name("gateway", asked.name)
    return RosterAsked(session, asked.request, asked.change, name, asked.address, asked.incarnation)


def _leave_asked(request: int, name: str, books: Books) -> Done | Denied:
    if name == books.gateway:
        return Done(request)
    return Denied(request, "name", f"this is gateway {books.gateway!r}, and {name!r} is to leave: ask that one itself")


def _check_range(what: str, value: int, low: int, high: int) -> None:
    if not low <= value <= high:
        raise UsageError(f"{what} {value} is not within {low} and {high}")
