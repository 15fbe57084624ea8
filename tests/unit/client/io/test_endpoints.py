"""Tests of endpoints: which gateway a client tries, in which order and after which wait, among those of the URL and those
discovered or moved.
"""

from __future__ import annotations

import pytest

from tutti import limits
from tutti.common.gateway_url import parse_url
from tutti.io.endpoints import Endpoints


def route(url: str, chance: float = 0.0) -> Endpoints:
    return Endpoints(parse_url(url), lambda: chance)


def named(one: Endpoints) -> list[str]:
    return [str(address) for address in one.addresses]


def test_a_route_asks_everyone_before_it_waits_and_waits_longer_each_round() -> None:
    one = route("tutti://a:1,b:2")
    waits = [one.advance("no") for _ in range(40)]
    assert waits[0] == 0
    assert waits == sorted(waits)
    assert waits[-1] == limits.RETRY_US_MAX / 1e6
    one.reset_delay()
    assert one.advance("no") == 0


def test_clients_that_wait_for_the_same_gateways_do_not_all_reconnect_at_once() -> None:
    early, late = route("tutti://a:1", chance=0.999), route("tutti://a:1")
    assert 0.5 < early.advance("no") / late.advance("no") < 0.6
    assert len({Endpoints(parse_url("tutti://a:1")).advance("no") for _ in range(10)}) > 1


def test_endpoints_report_the_last_result_of_each() -> None:
    one = route("tutti://a:1,b:2,c:3")
    one.advance("connection refused")
    one.record("connected")
    assert one.summary() == "a:1: connection refused; b:2: connected; c:3: not tried yet"


def test_endpoints_add_other_gateways_once_and_skip_invalid_addresses(caplog: pytest.LogCaptureFixture) -> None:
    one = route("tutti://a:1,b:2")
    one.advance("no")
    one.update({"a": "tutti://a:1", "c": "tutti://c:3", "d": "d:4", "e": "nowhere"})
    assert sorted(named(one)) == ["a:1", "b:2", "c:3", "d:4"]
    assert named(one)[:2] == ["a:1", "b:2"]
    assert str(one.current) == "b:2"
    assert "gateway e has a malformed address" in caplog.text
    before = named(one)
    one.update({"a": "tutti://a:1", "c": "tutti://c:3", "d": "d:4"})
    assert named(one) == before


def test_clients_of_one_gateway_go_to_different_ones_when_it_dies() -> None:
    others = {f"g{number}": f"h{number}:1" for number in range(2, 6)}
    found = set()
    for _ in range(200):
        one = Endpoints(parse_url("tutti://h1:1"))
        one.update({"g1": "h1:1", **others})
        one.advance("the connection was lost")
        found.add(str(one.current))
    assert found == set(others.values())


def test_a_moved_gateway_is_searched_at_its_new_address() -> None:
    one = route("tutti://a:1")
    one.update({"a": "a:1", "b": "b:2", "c": "c:3"})
    one.update({"a": "a:1", "b": "b:9", "c": "c:3"})
    assert sorted(named(one)) == ["a:1", "b:9", "c:3"]
    one.update({"a": "a:1", "c": "c:3"})
    assert named(one) == ["a:1", "c:3"]


def test_addresses_of_the_url_stay_although_no_gateway_lists_them_any_more() -> None:
    one = route("tutti://a:1,b:2")
    one.update({"a": "a:1", "b": "b:9"})
    assert named(one) == ["a:1", "b:2", "b:9"]


def test_a_gateway_outside_of_the_view_adds_addresses_and_removes_none() -> None:
    one = route("tutti://a:1")
    one.update({"a": "a:1", "b": "b:9"})
    one.update({"a": "a:1", "b": "b:2", "d": "d:4"}, authoritative=False)
    assert sorted(named(one)) == ["a:1", "b:9", "d:4"]


def test_a_disconnected_gateway_is_tried_last() -> None:
    one = route("tutti://a:1")
    one.update({"a": "a:1", "b": "b:2", "c": "c:3", "d": "d:4"}, silent=("b",))
    assert named(one)[-1] == "b:2"
    one.update({"a": "a:1", "b": "b:2", "c": "c:3", "d": "d:4"}, silent=("c", "d"))
    assert named(one)[:2] == ["a:1", "b:2"]


def test_the_present_one_keeps_its_turn_though_it_is_named_no_more() -> None:
    one = route("tutti://a:1")
    one.update({"a": "a:1", "b": "b:2"})
    one.advance("lost")
    one.update({"a": "a:1", "c": "c:3"})
    assert str(one.current) == "b:2"
    one.advance("lost")
    one.update({"a": "a:1", "c": "c:3"})
    assert named(one) == ["a:1", "c:3"]


def test_memory_is_bounded_however_often_gateways_move() -> None:
    one = route("tutti://a:1")
    for number in range(1, 500):
        one.update({f"g{number}": f"h{number}:1"})
        one.advance("no")
    assert len(named(one)) <= 3
    one.update({f"g{number}": f"h{number}:1" for number in range(500)})
    assert len(named(one)) <= 2 + limits.ADDRESSES_MAX


def test_wrong_ports_are_the_error_only_if_all_are_wrong() -> None:
    one = route("tutti://a:1,b:2")
    one.advance("http", wrong=True)
    assert not one.only_wrong_ports()
    one.advance("http", wrong=True)
    assert one.only_wrong_ports()


def test_advice_fits_the_results_and_names_each_remedy_once() -> None:
    one = route("tutti://a:1,b:2,c:3,d:4")
    assert one.advice() == ""
    for result in ("connection refused", "the host name is unknown (no answer)", "no connection within 0.5 s", "no route to host"):
        assert not one.nothing_listens()
        one.advance(result)
    assert one.advice() == (
        ". Start the gateway where connections are refused, or correct the port. Correct the host name, or add it to the name "
        "service. Check the network, the firewall, and the hosts that do not answer"
    )
    assert not one.nothing_listens(), "a host that does not answer may have a gateway"


def test_nothing_listens_only_if_each_address_has_no_process() -> None:
    one = route("tutti://a:1,b:2")
    one.advance("connection refused")
    assert not one.nothing_listens()
    one.advance("the host name is unknown (name or service not known)")
    assert one.nothing_listens()
    one.record("connected")
    assert not one.nothing_listens()
