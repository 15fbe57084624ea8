"""Tests of readers with stale gateways: a client acts on a confirmed frontier, tries another gateway if there is none, and reports
if all fail.
"""

from __future__ import annotations

import logging

import pytest

from tests.unit.client.fake_flight_server import ReadableGateway
from tutti import Reader
from tutti.errors import Behind, Unavailable
from tutti.sources.flight import FlightSource
from tutti.sources.source import resolve_bound


def url(*gateways: ReadableGateway) -> str:
    return "tutti://" + ",".join(gateway.url.removeprefix("tutti://") for gateway in gateways)


def test_a_named_reader_begins_at_the_offset_of_an_up_to_date_gateway() -> None:
    with ReadableGateway(8) as lagging, ReadableGateway(8) as near:
        lagging.reads.confirms = False
        lagging.reads.saved, near.reads.saved = {"loader": 2}, {"loader": 6}
        with Reader(url(lagging, near), name="loader") as reader:
            assert (reader.position, reader.end) == (6, 8)


def test_the_end_of_a_range_is_the_committed_one_and_not_that_of_a_laggard() -> None:
    with ReadableGateway(5) as lagging, ReadableGateway(8) as near:
        lagging.reads.confirms = False
        with Reader(url(lagging, near)) as reader:
            assert reader.end == 8
        with Reader(url(lagging, near), start="latest", follow=True) as reader:
            assert reader.position == 8


def test_without_a_confirming_gateway_the_furthest_is_read_with_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    with ReadableGateway(5) as one, ReadableGateway(8) as other, caplog.at_level(logging.WARNING, "tutti"):
        one.reads.confirms = other.reads.confirms = False
        with FlightSource(url(one, other)) as reads:
            frontier = reads.frontier()
            assert (frontier.offset, frontier.stale) == (8, True)
            assert reads.frontier().stale
            assert caplog.text.count("no gateway can confirm its frontier") == 1
            with pytest.raises(Behind, match="start=9 is above offset 8"):
                resolve_bound(reads, "start", 9, frontier)
            one.reads.confirms = True
            one.add(4)
            assert not reads.frontier().stale


def test_a_named_reader_has_no_start_where_no_gateway_confirms_it() -> None:
    with ReadableGateway(8) as gateway:
        gateway.reads.confirms = False
        gateway.reads.saved = {"loader": 2}
        with pytest.raises(Unavailable, match=r"the committed offset of reader .loader. is unknown.*give `start`"):
            Reader(gateway.url, name="loader", connect_timeout=0.2)
        with Reader(gateway.url, name="loader", start=2) as reader:
            assert reader.position == 2
        with FlightSource(gateway.url) as reads:
            assert reads.readers(linearizable=False) == {"loader": 2}


def test_a_wait_for_new_records_requests_no_confirmation() -> None:
    with ReadableGateway(8) as gateway, FlightSource(gateway.url) as reads:
        assert reads.frontier(3, timeout=1).offset == 8
        reads.topics(8)
    assert not any("linearizable" in asked for _, asked in gateway.reads.asked)


def test_an_unconfirmed_answer_of_an_earlier_release_is_accepted() -> None:
    with ReadableGateway(8) as gateway:
        gateway.reads.of_old = True
        gateway.reads.saved = {"loader": 2}
        with Reader(gateway.url, name="loader") as reader:
            assert (reader.position, reader.end) == (2, 8)
        gateway.reads.state = "minority"
        with FlightSource(gateway.url) as reads:
            assert reads.frontier().stale
