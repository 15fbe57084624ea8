"""Tests of exhausted file descriptors: idle connections are closed, and active ones stay."""

from __future__ import annotations

import contextlib
import socket

import pyarrow as pa
from pyarrow import flight

from tests.support.waiting import wait_until
from tutti_gateway.reads.common.authorization import ReadsAuthorizer, SecurityFiles
from tutti_gateway.reads.common.concurrency import ConcurrencyLimit
from tutti_gateway.reads.common.idle_connections import Connections, peer_of
from tutti_gateway.reads.flight.server import ReadsServer
from tutti_gateway.reads.flight.streams import Stream, StreamMeters

SCHEMA = pa.schema([("value", pa.binary())])
LARGE = pa.record_batch([pa.array([bytes(8 << 20)])], schema=SCHEMA)
CLOSED = (ConnectionResetError, BrokenPipeError)


class Serves(ReadsServer):
    """A server whose streams never end, with at most `most` of them."""

    def __init__(self, connections: Connections, most: int) -> None:
        self.places = ConcurrencyLimit("streams", most)
        super().__init__("grpc://127.0.0.1:0", None, None, None, connections, ReadsAuthorizer(SecurityFiles()))  # type: ignore[arg-type]  # they are not asked

    def do_get(self, context: flight.ServerCallContext, ticket: flight.Ticket) -> flight.FlightDataStream:
        call = self._connections.call(context.peer())
        stream = Stream(iter([LARGE] * 100), self.places.acquire(context.is_cancelled), call, StreamMeters())
        return flight.GeneratorStream(SCHEMA, stream)  # type: ignore[arg-type]  # as the server's own


def cancelled(stream: flight.FlightStreamReader) -> None:
    """The server's end waits for its calls."""
    with contextlib.suppress(flight.FlightError):
        stream.cancel()


def test_connections_that_ask_for_nothing_are_ended() -> None:
    connections = Connections()
    with Serves(connections, 2) as server, contextlib.ExitStack() as opened:
        asks = opened.enter_context(flight.connect(f"grpc://127.0.0.1:{server.port}"))
        stream = asks.do_get(flight.Ticket(b""))
        opened.callback(cancelled, stream)
        stream.read_chunk()
        idle = [opened.enter_context(socket.create_connection(("127.0.0.1", server.port), 30)) for _ in range(5)]
        ended = [0]

        def end() -> bool:  # as they are taken
            ended[0] += connections.end_idle()
            return ended[0] >= 5

        wait_until(end)
        for one in idle:
            with contextlib.suppress(*CLOSED):
                while one.recv(1000):
                    continue
        assert stream.read_chunk().data is not None


def test_peers_are_known_by_their_addresses() -> None:
    assert peer_of("ipv4:127.0.0.1:4000") == ("127.0.0.1", 4000)
    assert peer_of("ipv6:%5B::1%5D:4000") == ("::1", 4000)
    assert peer_of("ipv6:[::ffff:10.0.0.1]:4000") == ("10.0.0.1", 4000)
