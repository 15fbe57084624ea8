"""Control requests of clients. Each request is answered at once or becomes an event for the stack."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property

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
)
from tutti.data.names import check_name, check_producer
from tutti.errors import UsageError
from tutti_gateway.core import limits
from tutti_gateway.core.protocol.actions import ReadIndex
from tutti_gateway.core.protocol.events import (
    EpochAsked,
    Event,
    ForgetAsked,
    OffsetsAsked,
    ReadIndexAsked,
    RosterAsked,
    RosterForced,
    TopicAsked,
)
from tutti_gateway.node.status.status import StatusDocuments

INSTANCE_BYTES = 16
INCARNATION_BYTES = 16
CHANGES = ("add", "remove", "replace")
# clients cannot use the highest epoch, so that a fence can always use a higher epoch than a client
EPOCH_MAX = limits.EPOCH_MAX - 1
# index rows and readers hold offsets as signed 64-bit integers
OFFSET_MAX = 2**63 - 1

ControlRequest = (
    OpenProducer | OpenTopic | SaveOffset | Forget | Fence | Status | Producers | Members | ChangeRoster | ForceRoster | Leave
)


class DocumentCache:
    """The status documents at one time. Each document is created once, even if many clients request it.

    Attributes:
        table_bytes: total size of the producer tables that were sent from this cache.
    """

    def __init__(self, make: Callable[[], StatusDocuments]) -> None:
        """Create an empty cache. `make` returns the current documents."""
        self._make = make
        self._pages: dict[type, bytes] = {}
        self.table_bytes = 0

    @cached_property
    def documents(self) -> StatusDocuments:
        """The status documents, which are created at the first request."""
        return self._make()

    def page(self, request: Status | Producers | Members) -> bytes:
        """Return the requested document as JSON."""
        kind = type(request)
        if kind not in self._pages:
            documents = self.documents
            make = {Status: documents.status, Producers: documents.producers, Members: documents.members}[kind]
            self._pages[kind] = make()
        return self._pages[kind]


class PendingReadIndexes:
    """The requests to confirm the frontier that wait for the stack's answer."""

    def __init__(self) -> None:
        """Begin without requests."""
        self._last = 0
        self._waiting: dict[int, Callable[[bool], Event | None]] = {}  # by request number

    def begin(self, answer: Callable[[bool], Event | None]) -> ReadIndexAsked:
        """Return the event that starts a request.

        `resolve` calls `answer` with True if the frontier is confirmed; `answer` may return a further event for the stack.
        """
        self._last += 1
        self._waiting[self._last] = answer
        return ReadIndexAsked(self._last)

    def resolve(self, action: ReadIndex) -> Event | None:
        """Answer a request. Return the event that results from the answer, if any."""
        # The stack answers each number exactly once, with False if no majority answers (membership, M28).
        return self._waiting.pop(action.number)(action.confirmed)


class PendingFences:
    """The fences that wait for the stack to open their epoch.

    A fence opens a new epoch of a producer under an instance id that no client has, so no client can continue in that epoch.

    Attributes:
        waiting: the producer's name and the number of tries of each fence, by session and request.
    """

    def __init__(self, entropy: bytes) -> None:
        """Create an empty list of fences; `entropy` is 16 random bytes, the instance id of every fence."""
        self._instance = entropy
        self.waiting: dict[tuple[int, int], tuple[str, int]] = {}

    def begin(self, session: int, request: int, name: str, epoch: int) -> EpochAsked:
        """Return the event that fences a producer whose current epoch is `epoch`."""
        self.waiting[session, request] = name, 1
        # The group rejects batches of all epochs below the new one, which belongs to no client.
        return EpochAsked(session, request, name, self._instance, epoch + 1)

    def forget(self, session: int) -> None:
        """Delete the fences of a session that has ended."""
        for key in [key for key in self.waiting if key[0] == session]:
            del self.waiting[key]

    def translate(self, session: int, answer: Answer) -> Answer | EpochAsked:
        """Return the answer for the client, or an event that repeats the fence if a client has opened another epoch."""
        if not isinstance(answer, EpochOpened | EpochFenced | Denied):
            return answer
        waited = self.waiting.pop((session, answer.request), None)
        if waited is None or isinstance(answer, Denied):
            return answer
        if isinstance(answer, EpochOpened):
            return Done(answer.request)
        # A client has opened another epoch in the meantime, so the next attempt fences that epoch.
        name, tries = waited
        if tries >= limits.FENCE_TRIES_MAX:
            reason = f"producer {name!r} opened new epochs during all {tries} attempts to fence it; try again"
            return Denied(answer.request, "busy", reason, retry=True)
        self.waiting[session, answer.request] = name, tries + 1
        return EpochAsked(session, answer.request, name, self._instance, answer.epoch + 1)


def handle(message: ControlRequest, session: int, cache: DocumentCache, fences: PendingFences) -> Event | msgspec.Struct:
    """Return the event for the stack that carries out a request, or the answer to the request.

    Raises:
        UsageError: a name or a number in the request is invalid; the message names it.
    """
    match message:
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
            epoch = cache.documents.epoch_of(check_producer(name))
            # The request handler sends this refusal only after it has confirmed the frontier, because the log here may lag.
            if not epoch:
                return Denied(request, "unknown", f"no producer is named {name!r}; `tutti producers list` shows all producers")
            return fences.begin(session, request, name, epoch)
        case ChangeRoster():
            return _change_roster(message, session)
        case ForceRoster(request, names):
            if not 1 <= len(names) <= common_limits.ROSTER_MAX:
                raise UsageError(f"a forced roster cannot have {len(names)} gateways: name 1 to {common_limits.ROSTER_MAX}")
            return RosterForced(session, request, tuple(check_name("gateway", name) for name in names))
        case Leave(request, name):
            return _leave(request, name, cache.documents.gateway)
        case Status() | Producers() | Members():
            return StatusAnswer(message.request, cache.page(message))


def _change_roster(request: ChangeRoster, session: int) -> RosterAsked:
    if request.change not in CHANGES:
        raise UsageError(f"{request.change!r} is not a change of the roster: use one of {', '.join(CHANGES)}")
    # A replacement names the old incarnation, so that a repeated request changes nothing (membership, M23).
    if len(request.incarnation) not in (0, INCARNATION_BYTES):
        raise UsageError(f"an incarnation has {INCARNATION_BYTES} bytes, not {len(request.incarnation)}")
    name = check_name("gateway", request.name)
    return RosterAsked(session, request.request, request.change, name, request.address, request.incarnation)


def _leave(request: int, name: str, own: str) -> Done | Denied:
    if name == own:
        return Done(request)
    return Denied(request, "name", f"this is gateway {own!r}, which cannot make {name!r} leave: send the request to {name!r}")


def _check_range(what: str, value: int, low: int, high: int) -> None:
    if not low <= value <= high:
        raise UsageError(f"{what} {value} is not between {low} and {high}")
