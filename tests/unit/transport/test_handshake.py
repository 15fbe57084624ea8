"""Tests of the handshake: gateways that must not connect refuse each other, with a reason that names both sides."""

from __future__ import annotations

import msgspec
import pytest

from tutti import limits
from tutti.errors import disk_remedy
from tutti_gateway.transport.handshake import differences, duplicate_reason, malformed_reason, refusal_reason
from tutti_gateway.transport.interface import Introduction

LOG = b"l" * 16
MEMBERS = {"jfk": "10.0.0.1:7400", "lga": "10.0.0.2:7400"}
JFK = Introduction(
    release="0.3", group="ingest", gateway="jfk", incarnation=b"j" * 16, number=1, log=LOG, process=b"1" * 8, configured=MEMBERS
)
LGA = msgspec.structs.replace(JFK, gateway="lga", incarnation=b"l" * 16, number=2, process=b"2" * 8)


def changed(**values: object) -> Introduction:
    return msgspec.structs.replace(LGA, **values)


def test_gateways_of_one_group_and_one_log_talk_to_each_other() -> None:
    assert refusal_reason(JFK, LGA) == refusal_reason(LGA, JFK) == malformed_reason(LGA) == differences(JFK, LGA) == ""


def test_a_blank_disk_may_join_a_log() -> None:
    assert refusal_reason(JFK, changed(log=b"")) == refusal_reason(changed(log=b""), JFK) == ""


@pytest.mark.parametrize(
    ("values", "said"),
    [
        (
            {"protocol": 9, "release": "0.9"},
            ["version 9", "release 0.9", "version 1", "release 0.3", "that one on the host of this"],
        ),
        ({"protocol": 0}, ["version 0", "version 1", "this one on the host of gateway 'lga'"]),
        ({"group": "other"}, ["'lga' belongs to group 'other'", "'jfk' to group 'ingest'"]),
        ({"gateway": "jfk"}, ["two gateways are named 'jfk'", (b"j" * 16).hex(), (b"l" * 16).hex()]),
        ({"incarnation": b"j" * 16}, ["'lga' has a copy of the data directory of 'jfk'"]),
        ({"gateway": "jfk", "incarnation": b"j" * 16}, ["'jfk' has a copy of the data directory of 'jfk'"]),
        ({"gateway": "jfk", "incarnation": b"j" * 16, "process": b"1" * 8}, ["'jfk' is connected to itself"]),
        ({"log": b"x" * 16}, [f"'lga' has log {(b'x' * 16).hex()}", f"'jfk' has log {LOG.hex()}"]),
    ],
)
def test_a_refusal_names_both_sides(values: dict[str, object], said: list[str]) -> None:
    reason = refusal_reason(JFK, changed(**values))
    assert [part for part in said if part not in reason] == []


def test_a_second_process_of_one_gateway_differs_from_a_second_connection() -> None:
    assert duplicate_reason(LGA, LGA) == ""
    assert "on copies of one data directory" in duplicate_reason(LGA, changed(process=b"3" * 8))
    assert "two gateways are named 'lga'" in duplicate_reason(LGA, changed(process=b"3" * 8, incarnation=b"n" * 16))
    assert disk_remedy("lga") in duplicate_reason(LGA, changed(process=b"3" * 8, incarnation=b"n" * 16)), (
        "how many voters there are is not known"
    )


def test_different_members_are_reported_one_by_one_before_there_is_a_log() -> None:
    mine = msgspec.structs.replace(JFK, log=b"", configured=MEMBERS | {"ewr": "10.0.0.3:7400"})
    theirs = changed(log=b"", configured=MEMBERS | {"lga": "10.0.0.2:7410"})
    told = differences(mine, theirs)
    assert "ewr = missing there and '10.0.0.3:7400' here, lga = '10.0.0.2:7410' there and '10.0.0.2:7400' here" in told
    assert differences(mine, msgspec.structs.replace(theirs, log=LOG)) == ""


def test_many_differences_are_counted() -> None:
    mine = msgspec.structs.replace(JFK, log=b"", configured={f"g{number}": "a:1" for number in range(20)})
    assert "and 12 more" in differences(mine, changed(log=b"", configured={}))


TIMERS = {"heartbeat_ms": "100", "tick_ms": "1000", "atomic_heartbeats": "20"}


def test_different_timers_are_reported_on_both_sides_with_and_without_a_log() -> None:
    mine = msgspec.structs.replace(JFK, timers=TIMERS | {"preset": "local"})
    theirs = changed(timers=TIMERS | {"heartbeat_ms": "1000", "preset": "wan"})
    told = differences(mine, theirs)
    assert (
        "timers of 'lga' and of 'jfk' differ: heartbeat_ms = 1000 there and 100 here, preset = 'wan' there and 'local' here" in told
    )
    assert "heartbeat_ms = 100 there and 1000 here" in differences(theirs, mine)


@pytest.mark.parametrize("timers", [{}, TIMERS | {"preset": "wan"}])
def test_equal_times_of_another_preset_and_a_release_without_times_do_not_differ(timers: dict[str, str]) -> None:
    mine = msgspec.structs.replace(JFK, timers=TIMERS | {"preset": "local"})
    assert differences(mine, changed(timers=timers)) == ""


@pytest.mark.parametrize(
    "values",
    [
        {"group": ""},
        {"gateway": "x" * 250},
        {"configured": {"x" * 250: "a:1"}},
        {"configured": {f"g{number}": "a:1" for number in range(limits.ROSTER_MAX + 1)}},
        {"configured": {"g": "a" * 513}},
        {"release": "1" * 513},
        {"release": "1\x1b[2J"},
        {"address": "a" * 513},
        {"address": "a\n:1"},
        {"gateway": "lga\x1b[31m"},
        {"group": ".."},
        {"incarnation": b"short"},
        {"log": b"short"},
        {"number": -1},
        {"number": 65_536},
        {"process": b"p" * 17},
        {"seal": b"s" * 31},
        {"timers": {f"t{number}": "1" for number in range(33)}},
        {"timers": {"heartbeat_ms": "1\x1b[2J"}},
        {"timers": {"x" * 250: "1"}},
    ],
)
def test_messages_that_no_gateway_sends_are_malformed(values: dict[str, object]) -> None:
    assert malformed_reason(changed(**values))
