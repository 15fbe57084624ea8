"""Tests of the search for gateways: a command fails with the reason if no gateway runs or the group has no majority."""

from __future__ import annotations

import json
import socket
from typing import Any

import pytest

from tests.support.ports import free_port
from tests.unit.client.fake_gateway import FakeGateway
from tutti import limits
from tutti.data import client_protocol
from tutti.errors import Unavailable
from tutti_gateway.cli.common import gateways
from tutti_gateway.cli.common.gateways import Majority, NoMajority, await_gateway, change_client


class Member:
    """A gateway that reports this status, and answers no roster change."""

    def __init__(self, name: str, **status: object) -> None:
        self.status = {"gateway": name, "state": "minority", "reason": "", "log": "ab", "gateways": {}, "majority": False} | status

    def __call__(self, heard: Any) -> list[Any] | None:
        if isinstance(heard, client_protocol.Status):
            return [client_protocol.StatusAnswer(heard.request, json.dumps(self.status).encode())]
        return [] if isinstance(heard, client_protocol.ChangeRoster) else None


@pytest.fixture(autouse=True)
def _no_grace(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gateways, "GRACE_S", 0.0)


def checked_twice(url: str) -> None:
    majority = Majority(url)
    majority.check()  # the first check only begins the time of grace
    majority.check()


def test_a_group_without_a_majority_is_reported_with_its_reached_and_missing_gateways() -> None:
    dead = free_port()
    here = Member("jfk", reason="not heard of lga; 2 of 2 voters are needed")
    with FakeGateway(rule=here) as gateway:
        here.status["gateways"] = {"jfk": gateway.url, "lga": f"tutti://127.0.0.1:{dead}"}
        with pytest.raises(NoMajority) as error:
            checked_twice(gateway.url)
    assert str(error.value) == (
        "the group has no majority, so it cannot complete this change. Reached: jfk (minority: not heard of lga; 2 of 2 voters are "
        "needed). Not reached: lga (connection refused). Start the missing gateways, or repair the network between the gateways. "
        "The change may still be made when a majority is back: check with `tutti members` then, and run the command again if it "
        "has not been made. Only if too many gateways are lost for good: `tutti roster force --keep jfk`"
    )


def test_a_forced_roster_keeps_only_gateways_with_a_log_and_a_vote() -> None:
    def row(name: str, *, voter: bool) -> dict[str, object]:
        return {"name": name, "voter": voter}

    here = Member("jfk", members=[row("jfk", voter=True), row("lga", voter=False)])
    empty = Member("ewr", state="joining", log="", members=[row("ewr", voter=False)])
    other_disk = Member("lga", members=[row("jfk", voter=True), row("lga", voter=False)])
    with FakeGateway(rule=empty) as second, FakeGateway(rule=other_disk) as third, FakeGateway(rule=here) as gateway:
        here.status["gateways"] = {"jfk": gateway.url, "ewr": second.url, "lga": third.url}
        with pytest.raises(NoMajority) as error:
            checked_twice(gateway.url)
    assert str(error.value).endswith(
        "Only if too many gateways are lost for good: stop ewr, lga first (no log or no vote), then `tutti roster force --keep jfk`"
        ", and then `tutti members add` for each of the others, with an empty directory"
    )


def test_a_group_that_is_not_founded_is_reported_without_a_forced_roster() -> None:
    member = Member("jfk", state="joining", log="", reason="lga is missing")
    with FakeGateway(rule=member) as gateway, pytest.raises(NoMajority) as error:
        checked_twice(gateway.url)
    assert str(error.value).startswith("the group is not founded yet. Reached: jfk (joining: lga is missing).")
    assert "force" not in str(error.value)


@pytest.mark.parametrize("status", [{"majority": True}, {}])
def test_a_majority_that_another_gateway_hears_is_enough(status: dict[str, object]) -> None:
    """The first gateway may be cut off. A gateway of an earlier release does not report a majority."""
    there = Member("lga", **status)
    if not status:
        del there.status["majority"]
    with FakeGateway(rule=there) as other, FakeGateway(rule=Member("jfk", gateways={"lga": other.url})) as gateway:
        checked_twice(gateway.url)


def test_the_time_of_grace_begins_again_after_a_majority(monkeypatch: pytest.MonkeyPatch) -> None:
    member = Member("jfk")
    with FakeGateway(rule=member) as gateway:
        majority = Majority(gateway.url)
        majority.check()
        member.status["majority"] = True
        majority.check()
        member.status["majority"] = False
        majority.check()
        monkeypatch.setattr(gateways, "GRACE_S", 3600.0)
        majority.check()
        monkeypatch.setattr(gateways, "GRACE_S", 0.0)
        with pytest.raises(NoMajority):
            majority.check()


def test_gateways_that_do_not_answer_in_time_may_have_a_majority(monkeypatch: pytest.MonkeyPatch) -> None:
    """A status that takes too long is not evidence: the gateways may be far away or busy, and still make the change."""
    monkeypatch.setattr(gateways, "_STATUS_S", 0.2)
    member = Member("jfk")
    with socket.create_server(("127.0.0.1", 0)) as slow, FakeGateway(rule=member) as gateway:
        address = "tutti://{}:{}".format(*slow.getsockname())
        checked_twice(address)
        member.status["gateways"] = {"lga": address}
        with pytest.raises(NoMajority, match=r"Reached: jfk \(minority: .*\). Not reached: lga \("):
            checked_twice(gateway.url)


def test_a_request_without_an_answer_ends_when_the_majority_is_lost() -> None:
    member = Member("jfk", reason="alone")
    with (
        FakeGateway(rule=member) as gateway,
        change_client(gateway.url, 600.0) as (control, _),
        pytest.raises(NoMajority, match=r"jfk \(minority: alone\)"),
    ):
        control.change_roster("remove", "lga")


def test_a_command_names_the_silent_gateway_for_which_it_waits(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(limits, "ADDRESS_TIMEOUT_US", 1_000_000)
    monkeypatch.setattr(gateways, "SILENT_S", 0.0)
    with socket.create_server(("127.0.0.1", 0)) as suspended, FakeGateway() as second:
        silent = f"127.0.0.1:{suspended.getsockname()[1]}"
        await_gateway(f"tutti://{silent},127.0.0.1:{second.port}")
    assert f"waiting for a gateway: {silent} has not answered yet" in capsys.readouterr().err


def test_where_no_gateway_runs_the_command_does_not_wait() -> None:
    with pytest.raises(Unavailable) as error:
        await_gateway(f"tutti://127.0.0.1:{free_port()},no.such.host.invalid:7400")
    assert str(error.value).startswith("no gateway runs at 127.0.0.1:")
    assert str(error.value).endswith(
        ". Start the gateway where connections are refused, or correct the port. "
        "Correct the host name, or add it to the name service"
    )
