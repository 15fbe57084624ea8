"""Tests of reads from other gateways: any gateway with the range serves it, and a reader gets the list of gateways and their
states.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import closing

import pytest
from pyarrow import flight

from tests.support.reads_process import LOG, FakeGateway, LogMaker, ReadsProcess, ask
from tests.support.waiting import wait_until
from tutti.data.client_protocol import Hello, Welcome


class Peer(FakeGateway):
    """Another gateway of the group: it says where its reads port is."""

    def __init__(self, reads: str, log: str = LOG.hex()) -> None:
        self.reads, self.log = reads, log
        super().__init__()

    def _answer(self, request: object) -> object:  # type: ignore[override]  # it only ever greets
        if isinstance(request, Hello):
            return Welcome(1, "lga", "ingest", self.log, "primary", "0", self.reads, "", {}, 4 << 20, 8 << 20, 32 << 20)
        return None


@pytest.fixture
def lga() -> Iterator[Peer]:
    with closing(Peer("grpc://lga.example:7412")) as peer:
        yield peer


def locations(client: flight.FlightClient, **command: object) -> list[list[str]]:
    info = client.get_flight_info(flight.FlightDescriptor.for_command(json.dumps(command).encode()))
    return [[location.uri.decode() for location in endpoint.locations] for endpoint in info.endpoints]


def test_each_part_of_a_range_names_all_gateways_that_serve_it(
    client: flight.FlightClient, process: ReadsProcess, gateway: FakeGateway, log: LogMaker, lga: Peer
) -> None:
    log.add("t", 10)
    gateway.gateways = {"jfk": gateway.url, "lga": lga.url, "ewr": "tutti://127.0.0.1:1"}
    wait_until(lambda: set(ask(client, "frontier")["gateways"]) == {"jfk", "lga", "ewr"})
    assert locations(client, start=0, end=10) == [[process.url, "grpc://lga.example:7412"]]


def test_disconnected_gateways_and_other_logs_serve_nothing(
    client: flight.FlightClient, process: ReadsProcess, gateway: FakeGateway, log: LogMaker, lga: Peer
) -> None:
    log.add("t", 10)
    with closing(Peer("grpc://other.example:7422", log="b" * 32)) as other:
        gateway.gateways = {"jfk": gateway.url, "lga": lga.url, "ewr": other.url}
        gateway.silent = ["lga"]
        wait_until(lambda: ask(client, "frontier")["silent"] == ["lga"])
        assert locations(client) == [[process.url]]
        assert other.asked == 0


def test_a_part_is_read_from_another_gateway_only_when_that_has_come_so_far(client: flight.FlightClient, log: LogMaker) -> None:
    log.add("t", 10)
    info = client.get_flight_info(flight.FlightDescriptor.for_command(b'{"start": 0, "end": 10}'))
    ticket = json.loads(info.endpoints[0].ticket.ticket)
    assert ticket["seen"] == 10
