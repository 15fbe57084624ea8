"""Tests of `tutti roster force`: it asks one of the remaining gateways, and never runs without confirmation."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.unit.cli.group.test_members import Group, member
from tests.unit.client.fake_gateway import FakeGateway
from tutti.data import client_protocol
from tutti_gateway.cli.main import main


class Forced(Group):
    """A group of which one gateway is left."""

    def __call__(self, heard: Any) -> list[Any] | None:
        if isinstance(heard, client_protocol.ForceRoster):
            if self.denials:
                denied = self.denials.pop(0)
                return [client_protocol.Denied(heard.request, denied.code, denied.reason, denied.retry)]
            self.asked.append(heard)
            return [client_protocol.Done(heard.request)]
        return super().__call__(heard)


def three(gateway: FakeGateway) -> list[dict[str, object]]:
    """One remaining gateway that answers, and two dead ones."""
    here = gateway.url.removeprefix("tutti://")
    return [member("jfk", address=here, state="minority"), member("lga", state="silent"), member("ewr", state="silent")]


def test_a_remaining_gateway_gets_the_request_and_the_excluded_ones_are_printed(capsys: pytest.CaptureFixture[str]) -> None:
    group, stranger = Forced(), Forced()
    group.denials = [client_protocol.Denied(0, "roster", "a majority may still come: ask again", retry=True)]
    with FakeGateway(rule=group) as gateway, FakeGateway(rule=stranger) as other:
        group.members = stranger.members = three(gateway)
        group.after = [[member("jfk")]]
        code = main(["roster", "force", "--keep", "jfk", "--yes", "--url", other.url, "--json"])
    said = capsys.readouterr()
    assert code == 0
    assert [one.names for one in group.asked] == [("jfk",)]
    assert stranger.asked == []
    assert said.err.splitlines()[0] == "remaining: jfk; permanently excluded: lga (silent), ewr (silent)"
    assert said.err.splitlines()[-1] == "the group continues with jfk; never start an excluded gateway again: remove its directory"
    assert json.loads(said.out) == {"ok": True, "members": [member("jfk")]}


def test_nothing_is_forced_unconfirmed(capsys: pytest.CaptureFixture[str]) -> None:
    group = Forced()
    with FakeGateway(rule=group) as gateway:
        group.members = three(gateway)
        code = main(["roster", "force", "--keep", "jfk", "--url", gateway.url])
    assert (code, group.asked) == (2, [])
    assert capsys.readouterr().err.splitlines()[-1].startswith("error: forcing the roster needs a confirmation")


@pytest.mark.parametrize("keep", ["", ",", "jfk,bos"])
def test_names_that_are_none_are_refused(capsys: pytest.CaptureFixture[str], keep: str) -> None:
    group = Forced()
    with FakeGateway(rule=group) as gateway:
        group.members = three(gateway)
        code = main(["roster", "force", "--keep", keep, "--yes", "--url", gateway.url])
    assert (code, group.asked) == (2, [])
    said = f"error: --keep {keep!r} must list only gateways of the group: choose from jfk, lga, ewr\n"
    assert capsys.readouterr().err == said


def test_a_connected_majority_is_not_excluded_by_force(capsys: pytest.CaptureFixture[str]) -> None:
    group = Forced()
    group.denials = [client_protocol.Denied(0, "roster", "a majority of the roster is heard: jfk, lga")]
    with FakeGateway(rule=group) as gateway:
        group.members = three(gateway)
        code = main(["roster", "force", "--keep", "jfk", "--yes", "--url", gateway.url])
    assert code == 1
    assert capsys.readouterr().err.splitlines()[-1] == "error: a majority of the roster is heard: jfk, lga"


def test_without_excluded_gateways_no_loss_is_confirmed(capsys: pytest.CaptureFixture[str]) -> None:
    group = Forced()
    group.denials = [client_protocol.Denied(0, "roster", "view 2.1 decides: nothing is to be forced")]
    with FakeGateway(rule=group) as gateway:
        group.members = [member("jfk", address=gateway.url.removeprefix("tutti://"))]
        code = main(["roster", "force", "--keep", "jfk", "--url", gateway.url])
    assert (code, group.asked) == (1, [])
    assert capsys.readouterr().err == "error: view 2.1 decides: nothing is to be forced\n"
