"""Tests of `tutti members` and `tutti leave`: which requests go to the gateway, what the command waits for, and what it prints on a
timeout.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest

from tests.unit.client.fake_gateway import FakeGateway
from tutti.data import client_protocol
from tutti.io.admin import AdminClient
from tutti_gateway.cli.common import output
from tutti_gateway.cli.common.waiting import TimeLimit, showing_reason
from tutti_gateway.cli.group import members
from tutti_gateway.cli.main import main


def member(name: str, **changed: object) -> dict[str, object]:
    number = ("jfk", "lga", "ewr", "bos").index(name) + 1
    told: dict[str, object] = {
        "number": number,
        "name": name,
        "address": f"127.0.0.1:{7400 + 10 * number}",
        "incarnation": "ab" * 16,
        "state": "primary",
        "voter": True,
        "coordinator": name == "jfk",
        "age": number,
        "frontier": 100,
        "lag": 0,
        "heard_us": 120_000,
        "round_trip_us": 340,
        "reason": "",
    }
    return told | changed


class Group:
    """Answers as one gateway of a group does; `asked` has the operators' requests, `after` the later members."""

    def __init__(self, *found: dict[str, object]) -> None:
        self.members = list(found)
        self.asked: list[Any] = []
        self.denials: list[client_protocol.Denied] = []
        self.after: list[list[dict[str, object]]] = []

    def __call__(self, heard: Any) -> list[Any] | None:
        if isinstance(heard, client_protocol.Members):
            if self.asked and self.after:
                self.members = self.after.pop(0)
            return [client_protocol.StatusAnswer(heard.request, json.dumps(self.members).encode())]
        if isinstance(heard, client_protocol.ChangeRoster | client_protocol.Leave):
            if self.denials:
                denied = self.denials.pop(0)
                return [client_protocol.Denied(heard.request, denied.code, denied.reason, denied.retry)]
            self.asked.append(heard)
            return [client_protocol.Done(heard.request)]
        return None


class Said(NamedTuple):
    code: int
    out: str
    err: str


@pytest.fixture
def tutti(capsys: pytest.CaptureFixture[str]) -> Callable[..., Said]:
    def run(url: str, *arguments: str) -> Said:
        code = main([*arguments, "--url", url])
        captured = capsys.readouterr()
        return Said(code, captured.out, captured.err)

    return run


THREE = [member("jfk"), member("lga"), member("ewr", state="silent", lag=7, heard_us=-1, age=0, round_trip_us=0, reason="off")]


def test_members_are_listed_with_the_gateways_knowledge(tutti: Callable[..., Said]) -> None:
    with FakeGateway(rule=Group(*THREE)) as gateway:
        done = tutti(gateway.url, "members", "list")
        assert done == tutti(gateway.url, "members")
        assert json.loads(tutti(gateway.url, "members", "--json").out) == THREE
    assert (done.code, done.err) == (0, "")
    assert done.out.splitlines() == [
        "name\taddress\tstate\tvotes\tcoordinates\tage\tlag\theard\tround_trip\treason",
        "jfk\t127.0.0.1:7410\tprimary\tyes\tyes\t1\t0\t0.1 s\t0.34 ms\t-",
        "lga\t127.0.0.1:7420\tprimary\tyes\tno\t2\t0\t0.1 s\t0.34 ms\t-",
        "ewr\t127.0.0.1:7430\tsilent\tyes\tno\t-\t7\t-\t-\toff",
    ]


def test_on_a_terminal_reasons_are_below_and_no_address_is_broken(
    tutti: Callable[..., Said], monkeypatch: pytest.MonkeyPatch
) -> None:
    why = "not heard of jfk and lga; 2 of 3 voters are needed, and more of it than a narrow column holds"
    found = [member("jfk"), member("lga"), member("ewr", state="minority", reason=why)]
    monkeypatch.setenv("COLUMNS", "80")
    for module in (members, output):
        monkeypatch.setattr(module, "on_terminal", lambda: True)
    with FakeGateway(rule=Group(*found)) as gateway:
        lines = tutti(gateway.url, "members").out.splitlines()
    assert [line.split()[:3] for line in lines[-4:-1]] == [
        ["jfk", "127.0.0.1:7410", "primary"],
        ["lga", "127.0.0.1:7420", "primary"],
        ["ewr", "127.0.0.1:7430", "minority"],
    ]
    assert lines[-1] == f"ewr: {why}"


def test_an_added_gateway_is_waited_for_until_it_votes(tutti: Callable[..., Said]) -> None:
    group = Group(*THREE)
    learning = [*THREE, member("bos", state="learner", voter=False, lag=50)]
    group.after = [learning, [*THREE, member("bos")]]
    with FakeGateway(rule=group) as gateway:
        done = tutti(gateway.url, "members", "add", "bos", "127.0.0.1:7440", "--json")
    assert done.code == 0
    assert [(one.change, one.name, one.address) for one in group.asked] == [("add", "bos", "127.0.0.1:7440")]
    assert done.err.splitlines()[0] == "bos is in the roster"
    assert done.err.splitlines()[-1] == "bos has caught up and votes"
    assert [one["name"] for one in json.loads(done.out)["members"]] == ["jfk", "lga", "ewr", "bos"]


def test_an_added_gateway_that_was_not_started_is_reported_at_the_timeout(tutti: Callable[..., Said]) -> None:
    group = Group(*THREE)
    group.after = [[*THREE, member("bos", state="silent", voter=False)]] * 100
    with FakeGateway(rule=group) as gateway:
        done = tutti(gateway.url, "members", "add", "bos", "127.0.0.1:7440", "--timeout", "0.6")
        assert (done.code, done.out) == (3, "")
        assert done.err.splitlines()[-1] == (
            "error: bos is in the roster and does not vote yet after 0.6 s (it is not reachable): start it, or, if it runs, see "
            "its log for the reason; it votes without further action when it has caught up"
        )
        early = tutti(gateway.url, "members", "add", "bos", "127.0.0.1:7440", "--no-wait")
    assert early == Said(0, "", f"bos is in the roster\n{EVEN}\n{OPEN}\n")


OPEN = (
    "bos does not vote yet (it is not reachable): it votes when it has caught up; `tutti members` then shows it as primary, "
    "with votes yes"
)
SPLIT = "a split into two halves stops both"
EVEN = f"the roster names 4 gateways, an even number: {SPLIT}, and it tolerates no more failures than 3; add one more gateway"


def test_an_odd_number_of_gateways_causes_no_warning(tutti: Callable[..., Said]) -> None:
    group = Group(*THREE[:2])
    group.after = [THREE]
    with FakeGateway(rule=group) as gateway:
        done = tutti(gateway.url, "members", "add", "ewr", "127.0.0.1:7430", "--no-wait")
    assert done == Said(0, "", OPEN.replace("bos", "ewr is in the roster\newr", 1).replace("reachable", "reachable: off") + "\n")


@pytest.mark.parametrize(("lag", "said"), [(1, "joining, lacks 1 position"), (2000, "joining, lacks 2,000 positions")])
def test_without_a_wait_for_a_new_disk_the_change_and_its_status_command_are_printed(
    tutti: Callable[..., Said], lag: int, said: str
) -> None:
    group = Group(*THREE[:2], member("ewr", state="joining", voter=False, lag=lag))
    with FakeGateway(rule=group) as gateway:
        done = tutti(gateway.url, "members", "replace", "ewr", "--no-wait", "--json")
    assert (done.code, [one.change for one in group.asked]) == (0, ["replace"])
    told, left = done.err.splitlines()
    assert told == "the roster names the new disk of ewr"
    assert left == OPEN.replace("bos", "ewr").replace("it is not reachable", said)
    assert json.loads(done.out)["members"] == group.members


def test_without_a_wait_for_a_caught_up_gateway_this_is_printed(tutti: Callable[..., Said]) -> None:
    group = Group(*THREE[:2])
    group.after = [[*THREE[:2], member("ewr")]]
    with FakeGateway(rule=group) as gateway:
        done = tutti(gateway.url, "members", "add", "ewr", "127.0.0.1:7430", "--no-wait")
    assert done == Said(0, "", "ewr is in the roster\newr has caught up and votes\n")


def test_the_gateways_knowledge_of_a_disconnected_member_is_printed(tutti: Callable[..., Said]) -> None:
    """A host that does not resolve, or a key that is not listed, was said to be seen in the log of a gateway that had nothing."""
    group = Group(*THREE)
    group.after = [[*THREE, member("bos", state="silent", voter=False, reason="its public key is not listed")]] * 100
    with FakeGateway(rule=group) as gateway:
        done = tutti(gateway.url, "members", "add", "bos", "127.0.0.1:7440", "--timeout", "0.6")
    assert done.err.splitlines()[-1] == (
        "error: bos is in the roster and does not vote yet after 0.6 s (it is not reachable: its public key is not listed): start "
        "it, or, if it runs, resolve that; it votes without further action when it has caught up"
    )


def test_after_a_timeout_the_remaining_change_is_printed(tutti: Callable[..., Said], monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object) -> bool:
        raise KeyboardInterrupt

    group = Group(*THREE)
    group.after = [[*THREE, member("bos", state="silent", voter=False)]]
    monkeypatch.setattr(TimeLimit, "pause", interrupted)
    with FakeGateway(rule=group) as gateway:
        done = tutti(gateway.url, "members", "add", "bos", "127.0.0.1:7440")
    assert (done.code, done.out) == (130, "")
    assert done.err.splitlines() == [
        "bos is in the roster",
        EVEN,
        "bos stays in the roster, and votes when it has caught up",
        "interrupted",
    ]


def test_without_a_wait_the_pending_change_is_printed(tutti: Callable[..., Said], monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(AdminClient, "change_roster", interrupted)
    with FakeGateway(rule=Group(*THREE)) as gateway:
        done = tutti(gateway.url, "members", "remove", "ewr")
    assert (done.code, done.out) == (130, "")
    assert "remove ewr may still take effect; check with `tutti members`" in done.err


@pytest.mark.parametrize("address", ["bos", "127.0.0.1", "127.0.0.1:70000", "a b:7400"])
def test_an_address_that_is_none_is_refused_before_anybody_is_asked(tutti: Callable[..., Said], address: str) -> None:
    done = tutti("tutti://127.0.0.1:1", "members", "add", "bos", address)
    assert (done.code, done.out, done.err.count("\n")) == (2, "", 1)


def test_a_refusal_for_now_is_retried_and_reported_in_the_end(tutti: Callable[..., Said]) -> None:
    group = Group(*THREE)
    group.denials = [client_protocol.Denied(0, "roster", "gateway 'ewr' has not caught up yet; ask again", retry=True)] * 3
    group.after = [[*THREE[:2], member("ewr")]]
    with FakeGateway(rule=group) as gateway:
        done = tutti(gateway.url, "members", "replace", "ewr")
        assert (done.code, done.out) == (0, "")
        assert done.err.splitlines()[-1] == "ewr votes with its new disk"
        group.members = THREE
        group.denials = [
            client_protocol.Denied(0, "roster", "the view would not hold a majority of the new roster", retry=True)
        ] * 1000
        late = tutti(gateway.url, "members", "remove", "lga", "--timeout", "0.7")
    assert late.code == 3
    assert "remove lga: the view would not hold a majority of the new roster (roster)" in late.err
    said = f"{gateway.url.removeprefix('tutti://')} answered last: the view would not hold a majority of the new roster (roster)"
    assert late.err.splitlines()[-1].startswith(f"error: the request was not done within 0.7 s: {said}")
    assert late.err.splitlines()[-1].count("the view would not hold") == 1


def test_a_disk_that_votes_needs_no_replacement(tutti: Callable[..., Said]) -> None:
    group = Group(*THREE)
    with FakeGateway(rule=group) as gateway:
        done = tutti(gateway.url, "members", "replace", "lga")
    said = "error: gateway lga already votes with its current disk: `replace` is only for a gateway that lost its disk\n"
    assert done == Said(1, "", said)
    assert group.asked == []


@pytest.mark.parametrize("command", [["members", "remove"], ["members", "replace"], ["leave"]])
def test_an_unknown_name_is_answered_with_the_known_ones(tutti: Callable[..., Said], command: list[str]) -> None:
    group = Group(*THREE)
    with FakeGateway(rule=group) as gateway:
        done = tutti(gateway.url, *command, "jkf")
    assert done == Said(2, "", "error: the group has no gateway 'jkf': choose one of jfk, lga, ewr\n")
    assert group.asked == []


def test_a_gateway_is_removed(tutti: Callable[..., Said]) -> None:
    group = Group(*THREE)
    group.after = [THREE[:2]]
    with FakeGateway(rule=group) as gateway:
        done = tutti(gateway.url, "members", "remove", "ewr", "--json")
    assert (done.code, done.err) == (0, "ewr is removed from the group; stop its process\n")
    assert json.loads(done.out) == {"ok": True, "name": "ewr", "members": THREE[:2]}
    assert [(one.change, one.name) for one in group.asked] == [("remove", "ewr")]


def test_a_refusal_of_the_group_is_printed_verbatim(tutti: Callable[..., Said]) -> None:
    group = Group(*THREE)
    group.denials = [client_protocol.Denied(0, "roster", "gateway 'bos' is in the roster with address 127.0.0.1:7440")]
    with FakeGateway(rule=group) as gateway:
        done = tutti(gateway.url, "members", "add", "bos", "127.0.0.1:7450")
    assert done == Said(1, "", "error: gateway 'bos' is in the roster with address 127.0.0.1:7440\n")


def test_the_leaving_gateway_gets_the_request_itself_and_is_waited_for(tutti: Callable[..., Said]) -> None:
    leaving, asked = Group(), Group()
    with FakeGateway(rule=leaving) as own, FakeGateway(rule=asked) as other:
        asked.members = [member("jfk"), member("lga", address=own.url.removeprefix("tutti://")), member("ewr")]
        with pytest.MonkeyPatch.context() as patch:
            looks = iter([True, True, False])
            patch.setattr(members, "_listens", lambda _host, _port: next(looks))
            done = tutti(other.url, "leave", "lga", "--json")
        assert (done.code, json.loads(done.out), done.err) == (0, {"ok": True, "name": "lga"}, "lga has left\n")
        assert [(type(one), one.name) for one in leaving.asked] == [(client_protocol.Leave, "lga")]
        assert asked.asked == []
        late = tutti(other.url, "leave", "lga", "--timeout", "0.6")
        assert late.code == 3
        assert "lga still runs 0.6 s after the request to leave; see its log for the reason" in late.err


def test_removing_the_majority_causes_a_warning(tutti: Callable[..., Said]) -> None:
    group = Group(*THREE)
    with FakeGateway(rule=group) as gateway:
        group.members = [member("jfk", address=gateway.url.removeprefix("tutti://")), *THREE[1:]]
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(members, "_listens", lambda _host, _port: False)
            done = tutti(gateway.url, "leave", "jfk")
    assert done.code == 0
    assert done.err.splitlines()[0] == ONE_OF_THREE


ONE_OF_THREE = "1 of 3 remains, which is not a majority: the group takes no records until another gateway returns"
IN_NO_VIEW = "it is unknown whether a majority remains: the gateway that answers is not in a view at this moment"
APART = "it is unknown whether a majority remains: in the view but not active at this moment:"


@pytest.mark.parametrize(
    ("others", "said"),
    [
        ([{}, {}], "jfk has left"),
        ([{}, {"state": "silent"}], f"{APART} ewr (silent)"),
        ([{"state": "minority"}, {"state": "joining"}], f"{APART} lga (minority), ewr (joining)"),
        ([{"state": "minority", "age": 0}, {"state": "minority", "age": 0}], IN_NO_VIEW),
        ([{}, {"state": "leaving"}], ONE_OF_THREE),
        ([{}, {"state": "joining", "age": 0}], ONE_OF_THREE),
    ],
)
def test_the_warning_about_the_remaining_members_depends_on_the_view_and_not_on_connections(
    tutti: Callable[..., Said], others: list[dict[str, object]], said: str
) -> None:
    group = Group()
    with FakeGateway(rule=group) as gateway:
        own = {"address": gateway.url.removeprefix("tutti://"), "age": 0 if said == IN_NO_VIEW else 1}
        group.members = [member("jfk", **own), *(member(name, **other) for name, other in zip(("lga", "ewr"), others, strict=True))]
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(members, "_listens", lambda _host, _port: False)
            done = tutti(gateway.url, "leave", "jfk")
    assert (done.code, done.err.splitlines()[0]) == (0, said)


def test_a_disconnected_gateway_cannot_be_asked_to_leave(tutti: Callable[..., Said]) -> None:
    with FakeGateway(rule=Group(*THREE)) as gateway:
        done = tutti(gateway.url, "leave", "ewr")
    assert done == Said(1, "", "error: ewr is not reachable: it has left already, is down, or is disconnected\n")


def test_each_reason_of_a_wait_is_printed_once(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """One gateway after another is asked, so their reasons alternate."""
    monkeypatch.setattr("tutti_gateway.cli.common.waiting.POLL_S", 0.001)
    reasons = ["", "no view", "silent"] * 4
    over = threading.Event()

    def reason() -> str:
        if not reasons:
            over.set()
        return reasons.pop(0) if reasons else ""

    with showing_reason("remove g3", reason):
        assert over.wait(60)
    assert capsys.readouterr().err == "remove g3: no view\nremove g3: silent\n"
