"""The Flight service: decodes tickets and commands, checks permissions, and returns streams and answers."""

from __future__ import annotations

from collections.abc import Iterator

from pyarrow import flight

from tutti.data.frames.columns import check_columns, schema_of
from tutti.security.tokens import FULL_ACCESS
from tutti_gateway.core import limits
from tutti_gateway.reads.common.authorization import ReadsAuthorizer, check_action, hints_for
from tutti_gateway.reads.common.concurrency import ConcurrencyLimit, Lease
from tutti_gateway.reads.common.idle_connections import Call, Connections
from tutti_gateway.reads.flight.actions import ACTIONS, Actions
from tutti_gateway.reads.flight.plans import RangeSplitter
from tutti_gateway.reads.flight.streams import Streams
from tutti_gateway.reads.protocol.flight_errors import ReadError, raises_flight_errors, raises_schema_errors
from tutti_gateway.reads.protocol.tickets import Command, Ticket, decode, encode

WRITES_REFUSED = "the reads port accepts no records: send them with a Producer to the gateway's client port"


class ActionAnswer:
    """The answer of an action, which holds the call's lease until the answer is sent or the caller has disconnected."""

    def __init__(self, answer: bytes, lease: Lease, call: Call) -> None:
        self._unsent = [answer]
        self._lease = lease
        self._call = call

    def __iter__(self) -> ActionAnswer:
        """Return this iterator, because the Flight library calls `iter` first."""
        return self

    def __next__(self) -> bytes:
        """Return the answer at the first call; release the lease and end the iteration at the second call."""
        if not self._unsent:
            self._lease.release()
            raise StopIteration
        return self._unsent.pop()


class ReadsServer(flight.FlightServerBase):
    """Serves the ordered log and the lanes of one gateway.

    The constructor starts listening. Calls run in threads of the Flight library.
    """

    def __init__(
        self,
        location: str,
        streams: Streams,
        plans: RangeSplitter,
        actions: Actions,
        connections: Connections,
        guard: ReadsAuthorizer,
    ) -> None:
        """Listen at a location.

        Args:
            location: grpc://HOST:PORT, or grpc+tls://HOST:PORT with a certificate; port 0 means any free port (see `port`).

        Raises:
            pyarrow.ArrowException: the port cannot be bound, for example because another process uses it.
        """
        self._streams = streams
        self._plans = plans
        self._actions = actions
        self._connections = connections
        self.calls = ConcurrencyLimit("calls", limits.CALLS_MAX)  # has no wait time, so a call above the limit fails at once
        self._guard = guard
        certificate = guard.certificate
        certificates = None if certificate is None else [certificate]
        super().__init__(location, tls_certificates=certificates, middleware=guard.middleware())
        connections.port = self.port

    @raises_flight_errors
    def do_get(self, context: flight.ServerCallContext, ticket: flight.Ticket) -> flight.FlightDataStream:
        """Return a stream of records."""
        # `call` lives as long as the stream, so that the connection does not count as idle.
        access, call = self._guard.caller(context), self._connections.call(context.peer())
        request = decode(Ticket, ticket.ticket, "the ticket")
        self._guard.enforce(lambda: access.require_read(request.topics))
        with hints_for(access):
            return self._streams.open(request, call, context.is_cancelled)

    @raises_flight_errors
    def get_flight_info(self, context: flight.ServerCallContext, descriptor: flight.FlightDescriptor) -> flight.FlightInfo:
        """Return the endpoints of a range, one for each split."""
        access = self._guard.caller(context)
        command = _command(descriptor)
        # The permission is checked before a slot is acquired, so that callers without permission cannot use up the slots.
        self._guard.enforce(lambda: access.require_read(command.topics))
        lease = self.calls.acquire()
        try:
            call = self._connections.call(context.peer())
            with hints_for(access):
                info = self._plans.info(command, descriptor, context.is_cancelled)
            del call  # the connection may count as idle again
            return info
        finally:
            lease.release()

    @raises_schema_errors
    def get_schema(  # type: ignore[override]  # the stubs declare the client's type
        self, context: flight.ServerCallContext, descriptor: flight.FlightDescriptor
    ) -> flight.SchemaResult:
        """Return the schema of a command's records."""
        # Any valid token may read the schema, because the schema is the same for all topics.
        self._guard.caller(context)
        return flight.SchemaResult(schema_of(check_columns(_command(descriptor).columns)))

    @raises_flight_errors
    def list_flights(  # type: ignore[override]  # the library passes bytes, not text
        self, context: flight.ServerCallContext, criteria: bytes
    ) -> Iterator[flight.FlightInfo]:
        """Return the whole log as one flight."""
        access = self._guard.caller(context)
        self._guard.enforce(lambda: access.require_read(None))
        command = Command()
        descriptor = flight.FlightDescriptor.for_command(encode(command))
        return iter([self._plans.info(command, descriptor, context.is_cancelled)])

    @raises_flight_errors
    def list_actions(  # type: ignore[override]  # the library needs tuples
        self, context: flight.ServerCallContext
    ) -> list[tuple[str, str]]:
        """Return the name and description of each action."""
        self._guard.caller(context)
        return [(name, action.description) for name, action in ACTIONS.items()]

    @raises_flight_errors
    def do_action(self, context: flight.ServerCallContext, action: flight.Action) -> Iterator[bytes]:
        """Run one action, with JSON as body and answer."""
        access, body = self._guard.caller(context), action.body.to_pybytes()
        # An unknown action passes this check, and gets an error that lists the actions.
        if access is not FULL_ACCESS and action.type in ACTIONS:
            self._guard.enforce(lambda: check_action(access, action.type, body))
        call, lease = self._connections.call(context.peer()), self.calls.acquire()
        try:
            with hints_for(access):
                return ActionAnswer(self._actions.act(action.type, body, context.is_cancelled, access), lease, call)
        except BaseException:
            lease.release()  # after an error, no `ActionAnswer` exists to release the lease
            raise

    @raises_flight_errors
    def do_put(self, *_args: object) -> None:
        """Refuse the call: producers send records to the client port."""
        raise ReadError("read_only", WRITES_REFUSED)

    @raises_flight_errors
    def do_exchange(self, *_args: object) -> None:
        """Refuse the call: producers send records to the client port."""
        raise ReadError("read_only", WRITES_REFUSED)


def _command(descriptor: flight.FlightDescriptor) -> Command:
    if descriptor.descriptor_type != flight.DescriptorType.CMD:
        raise ReadError("malformed", "the descriptor is a path; use a command: the JSON of a ticket (docs/reference/reads.md)")
    return decode(Command, descriptor.command or b"", "the command")
