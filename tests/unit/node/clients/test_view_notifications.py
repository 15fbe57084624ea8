"""Tests of view notifications: clients learn without a request of gateways that join, move or leave, and of a minority, and of
nothing else.
"""

from __future__ import annotations

import msgspec

from tests.unit.node.driver_harness import WELCOME, A, B, Bench
from tutti.data.client_protocol import Welcome
from tutti_gateway.core.protocol.events import TimeAdvanced


def look(bench: Bench, **changed: object) -> None:
    bench.documents.greeting = msgspec.structs.replace(bench.documents.greeting, **changed)
    bench.driver.sweep()


def met() -> Bench:
    """With two clients that know how things are."""
    bench = Bench()
    bench.hello(A)
    bench.hello(B)
    look(bench)
    return bench


def test_every_client_is_notified_of_moved_gateways() -> None:
    bench = met()
    look(bench, gateways={"lga": "tutti://lga:7500"})
    for routing in (A, B):
        (told,) = bench.clients.told(routing)
        assert isinstance(told, Welcome)
        assert told.gateways == {"lga": "tutti://lga:7500"}
    look(bench, silent=("lga",))
    assert len(bench.clients.told(A)) == 1


def test_every_client_is_notified_of_a_lane_that_started_or_stopped() -> None:
    bench = met()
    for lane in ("1-" + 32 * "a", ""):
        look(bench, lane=lane)
        (told,) = bench.clients.told(A)
        assert isinstance(told, Welcome)
        assert told.lane == lane


def test_a_minority_is_notified_when_it_begins_and_ends() -> None:
    bench = met()
    for state, told in (("minority", 1), ("halted", 0), ("primary", 1)):
        look(bench, state=state)
        assert len(bench.clients.told(A)) == told, state


def test_nothing_is_sent_without_a_change_or_for_a_view_change_alone() -> None:
    bench = met()
    look(bench)
    look(bench, state="joining")
    look(bench, state="primary", version="2")
    assert bench.clients.sent == []
    assert bench.stack.events == [TimeAdvanced()] * 4  # a sweep for each look, the first one in `met`


def test_a_disconnected_client_is_noticed_on_the_way() -> None:
    bench = met()
    bench.clients.gone.add(A)
    look(bench, silent=("lga",))
    assert len(bench.clients.told(B)) == 1
    assert len(bench.driver.sessions) == 1
    assert WELCOME.silent == ()
