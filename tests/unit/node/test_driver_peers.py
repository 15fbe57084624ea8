"""Tests of the driver's view of slow and faulty members, and of a client that sends requests and does not read."""

from __future__ import annotations

import pytest
from structlog.testing import capture_logs

from tests.unit.node.driver_harness import A, B, Bench, Documents, control
from tutti.data.client_protocol import Denied, Producers, StatusAnswer
from tutti_gateway.core import limits
from tutti_gateway.core.protocol.actions import Dropped, Peers, Suspect, ViewInstalled
from tutti_gateway.core.protocol.events import Persisted, SpaceChanged


@pytest.mark.parametrize(("low", "told"), [(False, 1), (True, 0)])
def test_a_member_that_delays_the_group_is_logged_once_and_not_with_its_disk_as_the_reason(low: bool, told: int) -> None:
    bench = Bench()
    bench.answers[SpaceChanged] = [Suspect(1, "no vote since position 7")]
    with capture_logs() as lines:
        for _ in range(3):
            bench.happen(SpaceChanged(low, "1 MiB is free"))
    assert bench.driver.suspected == "no vote since position 7"
    assert [line["event"] for line in lines].count("a member blocks the group") == told


def test_a_member_that_delays_the_group_is_named_in_the_status() -> None:
    bench = Bench()
    bench.answers = {Persisted: [Peers(((2, "jfk", "127.0.0.1:7401"),)), Suspect(2, "it is left out of the next view")]}
    with capture_logs() as told:
        bench.happen(Persisted(1))
    assert bench.driver.suspected == "jfk blocks the group: it is left out of the next view"
    assert [line["member"] for line in told if line["event"] == "a member blocks the group"] == ["jfk"]


def test_all_members_that_delay_the_group_are_named_and_each_is_logged_once() -> None:
    bench = Bench()
    peers = Peers(((2, "jfk", "127.0.0.1:7401"), (3, "lga", "127.0.0.1:7411")))
    bench.answers = {Persisted: [peers, Suspect(2, "no vote"), Suspect(3, "no vote")]}
    with capture_logs() as told:
        bench.happen(Persisted(1))
        bench.happen(Persisted(2))
    assert bench.driver.suspected == "jfk blocks the group: no vote; lga blocks the group: no vote"
    assert [line["member"] for line in told if line["event"] == "a member blocks the group"] == ["jfk", "lga"]


def test_the_members_of_a_view_are_logged_with_their_names() -> None:
    bench = Bench()
    peers = Peers(((2, "ewr", "127.0.0.1:7401"), (3, "lga", "127.0.0.1:7411")))
    bench.answers = {Persisted: [peers, ViewInstalled(65538, (3, 0, 2, 9), 3, True)]}  # this gateway has no number yet: 0
    with capture_logs() as told:
        bench.happen(Persisted(1))
    (line,) = [line for line in told if line["event"] == "view installed"]
    assert (line["members"], line["names"]) == ([3, 0, 2, 9], ["lga", "jfk", "ewr", "9"])


def test_a_member_that_left_the_view_is_logged_by_name_although_no_view_was_between() -> None:
    bench = Bench()
    peers = Peers(((2, "ewr", "127.0.0.1:7401"), (3, "lga", "127.0.0.1:7411")))
    views = [ViewInstalled(65538, (3, 0, 2), 3, True), ViewInstalled(0, (), 0, False), ViewInstalled(131075, (3, 0), 3, True)]
    bench.answers = {Persisted: [peers, *views]}
    with capture_logs() as told:
        bench.happen(Persisted(1))
    lines = [line for line in told if "view" in line["event"]]
    assert [line.get("left") for line in lines] == [None, None, ["ewr"]]
    assert lines[1]["event"] == "no view: this gateway takes part in no decision until the next view"


def test_dropped_messages_of_a_member_are_one_warning_with_sender_kind_reason_and_count() -> None:
    bench = Bench()
    bench.answers = {Persisted: [Dropped("Order", 3, "of a view that is over", 12)]}
    with capture_logs() as told:
        bench.happen(Persisted(1))
    (line,) = told
    assert line.pop("event")
    assert line == {"log_level": "warning", "kind": "Order", "sender": 3, "reason": "of a view that is over", "count": 12}


def test_peers_are_those_of_the_last_report() -> None:
    bench = Bench()
    for peers in (((2, "jfk", "127.0.0.1:7401"), (3, "lga", "127.0.0.1:7411")), ((3, "lga", "127.0.0.1:7421"),)):
        bench.answers = {Persisted: [Peers(peers)]}
        bench.happen(Persisted(1))
        assert bench.driver.network.peers == peers
        assert bench.wire.told[-1] == peers


def test_a_client_that_asks_for_tables_and_does_not_read_gets_so_many(monkeypatch: pytest.MonkeyPatch) -> None:
    table = b"x" * (3 << 20)
    monkeypatch.setattr(Documents, "producers", lambda _: table)
    bench = Bench()
    bench.hello(A)
    bench.say(*(control(A, Producers(number)) for number in range(1, 101)))
    told = bench.clients.told(A)
    answers = [answer for answer in told if isinstance(answer, StatusAnswer)]
    denied = [answer for answer in told if isinstance(answer, Denied)]
    assert limits.TABLES_A_SESSION_BYTES <= len(answers) * len(table) < limits.TABLES_A_SESSION_BYTES + len(table)
    assert len(answers) + len(denied) == 100
    assert all(answer.retry and answer.code == "busy" for answer in denied)
    bench.hello(B)
    bench.say(control(B, Producers(1)))
    assert isinstance(bench.clients.told(B)[0], StatusAnswer), "another client is served"
    bench.clock.time_us += 60_000_000
    bench.say(control(A, Producers(101)))
    assert isinstance(bench.clients.told(A)[0], StatusAnswer), "and so is the first one later"
