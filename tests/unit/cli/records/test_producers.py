"""Tests of `tutti producers list`: it shows the state of a gateway that is up to date, and says if that is not certain."""

from __future__ import annotations

import json

import pytest

from tests.unit.client.fake_flight_server import ReadableGateway
from tests.unit.client.fake_gateway import FakeGateway
from tutti.data import client_protocol
from tutti_gateway.cli.main import main

ONE = {"name": "p", "number": 1, "epoch": 1, "sequence": 3, "progress": "", "closed": False, "last_seen_us": 0}


def knows(gateway: FakeGateway, sequence: int) -> None:
    """The gateway answers that the producer has sent so much."""
    table = json.dumps({"producers": [ONE | {"sequence": sequence}]}).encode()
    gateway.rule = lambda heard: (
        [client_protocol.StatusAnswer(heard.request, table)] if isinstance(heard, client_protocol.Producers) else None
    )


def listed(capsys: pytest.CaptureFixture[str], *gateways: ReadableGateway) -> tuple[int, str]:
    """Return the listed sequence, and the note."""
    url = "tutti://" + ",".join(gateway.url.removeprefix("tutti://") for gateway in gateways)
    assert main(["producers", "list", "--json", "--url", url]) == 0
    out, err = capsys.readouterr()
    return json.loads(out)[0]["sequence"], err


def test_producers_are_those_of_the_gateway_that_confirms_its_frontier(capsys: pytest.CaptureFixture[str]) -> None:
    with ReadableGateway(5) as lagging, ReadableGateway(8) as near:
        knows(lagging.gateway, 3)
        knows(near.gateway, 6)
        assert listed(capsys, lagging, near) == (3, "")
        lagging.reads.confirms = False
        assert listed(capsys, lagging, near) == (6, "")


def test_a_gateway_that_lags_reports_it_although_it_is_primary(capsys: pytest.CaptureFixture[str]) -> None:
    with ReadableGateway(5) as lagging:
        knows(lagging.gateway, 3)
        lagging.reads.confirms = False
        sequence, noted = listed(capsys, lagging)
    assert sequence == 3
    assert "is primary (it cannot confirm its frontier with a majority): the list may be out of date" in noted


def test_a_gateway_whose_reads_port_does_not_answer_is_uncertain(capsys: pytest.CaptureFixture[str]) -> None:
    with ReadableGateway(5) as gateway:
        knows(gateway.gateway, 3)
        gateway.reads.stop()
        sequence, noted = listed(capsys, gateway)
    assert sequence == 3
    assert "is primary (it is unknown whether the gateway lags: " in noted
