"""Tests of inbound peers: a connection gets the number that this gateway has for the peer's name, and no peer can speak for
another.
"""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from tutti_gateway.core import limits
from tutti_gateway.transport.inbound_peers import InboundPeers
from tutti_gateway.transport.interface import Introduction

LOG, OTHER_LOG = b"l" * 16, b"o" * 16
ME = Introduction(group="g", gateway="jfk", incarnation=b"j" * 16, number=1, log=LOG, process=b"pppppppp", address="h:7400")


def other(name: str = "lga", **said: Any) -> Introduction:
    given: dict[str, Any] = {
        "group": "g",
        "gateway": name,
        "incarnation": (name * 16).encode()[:16],
        "number": 2,
        "log": LOG,
        "process": (name * 8).encode()[:8],
        "address": "h:7410",
    }
    return Introduction(**given | said)


class Hall:
    """Guests, and a clock that the test moves."""

    def __init__(self, me: Introduction = ME, **numbers: int) -> None:
        self.now_us = 10_000_000
        self.guests = InboundPeers(me, lambda: self.now_us)
        self.guests.set_numbers(numbers)

    def number(self, routing: bytes) -> int:
        guest = self.guests.received_from(routing)
        return guest.number if guest is not None else -1


def test_a_name_keeps_the_number_known_here_if_the_peer_reports_a_lower_one() -> None:
    hall = Hall(lga=5)
    verdict = hall.guests.assess_introduction(b"r", other(number=2), 0)
    assert (verdict.number, verdict.connect, verdict.reason) == (5, False, "")
    assert hall.number(b"r") == 5
    hall.guests.set_numbers({"lga": 6})
    assert hall.number(b"r") == 6


def test_a_peer_that_reports_a_higher_number_has_it_until_this_log_names_one_that_is_not_lower() -> None:
    hall = Hall(lga=2)
    verdict = hall.guests.assess_introduction(b"r", other(number=5), 0)
    assert (verdict.number, verdict.connect) == (5, True)
    assert hall.guests.unlisted() == {5: ("lga", "h:7410")}
    hall.guests.set_numbers({"lga": 5})
    assert hall.number(b"r") == 5
    assert hall.guests.unlisted() == {}
    hall.guests.set_numbers({"lga": 6})
    assert hall.number(b"r") == 6


@pytest.mark.parametrize("said", [{"number": 1}, {"number": 7}, {"number": 5, "log": b""}, {"number": 0}])
def test_no_peer_gets_the_number_of_another_one_or_of_another_log(said: dict[str, Any]) -> None:
    hall = Hall(lga=2, ewr=7)
    verdict = hall.guests.assess_introduction(b"r", other(**said), 0)
    assert (verdict.number, verdict.connect) == (2, False)
    assert hall.guests.unlisted() == {}


def test_an_unlisted_peer_gets_its_own_number_if_it_has_the_same_log_and_sends_messages() -> None:
    hall = Hall(lga=2)
    verdict = hall.guests.assess_introduction(b"r", other("bos", number=4), 0)
    assert (verdict.number, verdict.connect) == (4, True)
    assert hall.guests.unlisted() == {4: ("bos", "h:7410")}
    hall.now_us += limits.GUEST_SILENT_US
    assert hall.guests.unlisted() == {}
    assert hall.number(b"r") == 4
    assert hall.guests.unlisted() == {4: ("bos", "h:7410")}
    for wrong in (other("ewr", number=2), other("ewr", number=1), other("ewr", number=0), other("ewr", number=4, log=b"")):
        assert hall.guests.assess_introduction(b"s", wrong, 0).number == 0
    assert hall.number(b"s") == 0, "it is remembered, and nothing of it is taken"


def test_an_unknown_peer_gets_the_way_to_become_a_member_and_is_one_once_it_is_listed() -> None:
    hall = Hall()
    verdict = hall.guests.assess_introduction(b"r", other(number=0, log=b""), 0)
    assert verdict.number == 0
    assert "tutti members add lga" in verdict.refusal
    assert "lga" in verdict.reason
    hall.guests.set_numbers({"lga": 3})
    assert hall.number(b"r") == 3


def test_a_learner_accepts_peers_of_its_log_that_are_not_listed() -> None:
    hall = Hall(msgspec.structs.replace(ME, log=b"", number=0))
    assert hall.guests.assess_introduction(b"r", other(number=7), 0).number == 0
    hall.guests.me = ME
    hall.guests.reassess()
    assert hall.number(b"r") == 7


def test_a_refused_peer_is_disconnected_and_its_messages_are_dropped() -> None:
    hall = Hall(lga=2)
    for wrong in (other(group="other"), other(protocol=99), other(log=OTHER_LOG), other("jfk")):
        verdict = hall.guests.assess_introduction(b"r", wrong, 0)
        assert verdict.number == 0
        assert verdict.reason
        assert verdict.refusal
        assert hall.number(b"r") == -1


def test_a_second_process_of_a_name_waits_until_the_first_is_silent_for_long() -> None:
    hall = Hall(lga=2)
    hall.guests.assess_introduction(b"first", other(), 0)
    again = other(process=b"another!")
    verdict = hall.guests.assess_introduction(b"second", again, 0)
    assert verdict.number == 0
    assert "copies" in verdict.refusal
    assert hall.number(b"first") == 2
    hall.now_us += limits.DUPLICATE_SILENT_US
    assert hall.guests.assess_introduction(b"second", again, 0).number == 2


def test_a_process_started_after_the_first_ones_connection_broke_is_accepted_at_once() -> None:
    hall = Hall(lga=2)
    hall.guests.assess_introduction(b"first", other(), 0)
    assert hall.guests.assess_introduction(b"second", other(process=b"another!"), hall.now_us).number == 2


def test_connections_are_bounded_and_the_one_silent_for_longest_goes() -> None:
    hall = Hall(lga=2)
    hall.guests.assess_introduction(b"old", other(), 0)
    for number in range(limits.MESH_INTRODUCED_MAX):
        hall.now_us += 1
        hall.guests.assess_introduction(b"r%d" % number, other("stranger", number=0, log=b""), 0)
    assert hall.number(b"old") == -1
    assert hall.number(b"r0") == 0


def test_a_peer_with_other_timers_is_accepted_and_reported_until_it_changes_them() -> None:
    lan, wan = {"heartbeat_ms": "200", "preset": "lan"}, {"heartbeat_ms": "1000", "preset": "wan"}
    hall = Hall(msgspec.structs.replace(ME, timers=lan), lga=2, ewr=3)
    hall.guests.assess_introduction(b"s", other("ewr", number=3, timers=lan), 0)
    verdict = hall.guests.assess_introduction(b"r", other(timers=wan), 0)
    assert verdict.number == 2
    assert "heartbeat_ms = 1000 there and 200 here, preset = 'wan' there and 'lan' here" in verdict.reason
    assert hall.guests.differing() == {"lga": verdict.reason}
    hall.now_us += 1
    hall.guests.assess_introduction(b"t", other(timers=lan, process=b"another!"), hall.now_us)
    assert hall.guests.differing() == {}


def test_a_peer_that_is_not_a_member_is_named_to_both_sides() -> None:
    """What the other gateway is told stands in its row of this one: "it" was taken for this one there."""
    verdict = Hall(ewr=3).guests.assess_introduction(b"r", other(number=0, log=b""), 0)
    assert verdict.refusal == "lga is not a member of group 'g': add it with `tutti members add lga HOST:PORT`"
    assert verdict.reason == "lga at h:7410 is not a member of group 'g': add it with `tutti members add lga HOST:PORT`"
