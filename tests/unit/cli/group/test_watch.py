"""Tests of `tutti status --watch`: it shows every gateway, a silent gateway delays nothing, and each change prints a line."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from tests.unit.client.fake_gateway import FakeGateway
from tutti.common.gateway_url import parse_url
from tutti.data import client_protocol
from tutti_gateway.cli.group import watch
from tutti_gateway.cli.group.watch import NO_ANSWER, GatewayState, Watch


class Gateway:
    """Answers Status as a gateway of a group does."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.gateways: dict[str, str] = {}
        self.changed: dict[str, object] = {}

    def __call__(self, heard: Any) -> list[Any] | None:
        if not isinstance(heard, client_protocol.Status):
            return None
        told = {
            "gateway": self.name,
            "state": "primary",
            "reason": "",
            "view": {"id": 65538, "text": "1.2", "coordinator": "lga", "members": ["jfk", "lga"]},
            "frontier": 10,
            "lag": {"jfk": 0, "lga": 0, "ewr": 5},
            "gateways": self.gateways,
        } | self.changed
        return [client_protocol.StatusAnswer(heard.request, json.dumps(told).encode())]


def seen(watching: Watch, expected: Callable[[list[GatewayState]], bool]) -> list[GatewayState]:
    deadline = time.monotonic() + 10
    while not expected(states := watching.states()):
        assert time.monotonic() < deadline, states
        time.sleep(0.02)
    return states


def test_gateways_that_the_url_does_not_name_are_seen_too() -> None:
    jfk, lga = Gateway("jfk"), Gateway("lga")
    with FakeGateway(rule=jfk) as one, FakeGateway(rule=lga) as other:
        dead = "tutti://127.0.0.1:1"
        jfk.gateways = {"jfk": one.url, "lga": other.url, "ewr": dead}
        watching = Watch(parse_url(one.url), 0.05)
        try:
            found = seen(watching, lambda states: [gateway.reason != "" for gateway in states] == [True, False, False])
        finally:
            watching.close()
    ewr, jfk_seen, lga_seen = found
    assert (ewr.gateway, ewr.state, ewr.frontier, ewr.lag, ewr.reason) == ("ewr", NO_ANSWER, None, 5, "connection refused")
    assert jfk_seen == GatewayState("jfk", one.url.removeprefix("tutti://"), "primary", "1.2", 10, 0, None, "")
    assert lga_seen.view == "1.2, coordinates"


def test_a_hanging_gateway_is_reported_and_the_others_continue(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watch, "ANSWER_S_MAX", 0.3)
    jfk = Gateway("jfk")
    with (
        FakeGateway(rule=jfk) as one,
        FakeGateway(rule=lambda heard: [] if isinstance(heard, client_protocol.Status) else None) as mute,
    ):
        watching = Watch([*parse_url(one.url), *parse_url(mute.url)], 0.05)
        try:
            found = seen(watching, lambda states: len(states) == 2 and all(gateway.reason or gateway.gateway for gateway in states))
            assert [gateway.state for gateway in found if gateway.gateway != "jfk"] == [NO_ANSWER]
            jfk.changed = {"frontier": 11}
            seen(watching, lambda states: any(gateway.frontier == 11 for gateway in states))
        finally:
            watching.close()


def test_a_lost_gateway_is_reported_at_once_with_its_last_state() -> None:
    """It was shown as primary until the next question had waited for its answer: three seconds, with an interval of one."""
    with FakeGateway(rule=Gateway("jfk")) as one:
        watching = Watch(parse_url(one.url), 300)
        try:
            seen(watching, lambda states: [gateway.state for gateway in states] == ["primary"])
            before = datetime.now(UTC)
            one.stop()
            (jfk,) = seen(watching, lambda states: states[0].state == NO_ANSWER)
            one.start()
            assert jfk.reason == "connection refused; its last known state was primary"
            assert datetime.fromisoformat(str(jfk.heard)) <= before
            assert (jfk.gateway, jfk.frontier, jfk.view) == ("jfk", None, "")
        finally:
            watching.close()


def test_a_late_answer_is_reported_before_its_timeout(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watch, "ANSWER_S_MAX", 300)
    jfk, stands_still = Gateway("jfk"), False
    with FakeGateway(rule=lambda heard: [] if stands_still and isinstance(heard, client_protocol.Status) else jfk(heard)) as one:
        watching = Watch(parse_url(one.url), 0.05)
        try:
            seen(watching, lambda states: [gateway.state for gateway in states] == ["primary"])
            stands_still = True
            (found,) = seen(watching, lambda states: states[0].state == NO_ANSWER)
            assert found.reason == ("no answer for 0.5 s or more; its last known state was primary")
            assert found.heard is not None
        finally:
            watching.close()


def test_the_age_of_the_last_answer_is_shown_on_a_terminal() -> None:
    heard = (datetime.now(UTC) - timedelta(seconds=7)).isoformat()
    table = watch._table([GatewayState("jfk", "h:1", NO_ANSWER, "", None, 3, heard, "connection refused")])
    assert list(table.columns[6].cells) == ["7 s ago"]


def test_a_gateway_with_two_addresses_is_one() -> None:
    jfk = Gateway("jfk")
    with FakeGateway(rule=jfk) as one:
        port = one.url.rpartition(":")[2]
        watching = Watch(parse_url(f"{one.url},tutti://localhost:{port}"), 0.05)
        try:
            watching.wait_for_all(5)
            assert [gateway.gateway for gateway in watching.states()] == ["jfk"]
        finally:
            watching.close()


def test_a_line_comes_when_something_changed(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watch, "LATE_S", 300)
    jfk = Gateway("jfk")
    looks = asked = 0
    with FakeGateway(rule=jfk) as one:

        def ends() -> bool:
            """Return whether to stop, some polls after the change: a third request implies an answer to the first."""
            nonlocal looks, asked
            looks += 1
            if looks == 4:
                jfk.changed = {"state": "minority", "reason": "two of three are away"}
                asked = len(one.requests(client_protocol.Status))
            elif len(one.requests(client_protocol.Status)) < asked + 3:
                looks = min(looks, 10)
            return looks > 12

        watch.watch(one.url, 0.1, True, ends)
        lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
        jfk.changed = {}
        looks = 5
        watch.watch(one.url, 0.1, False, ends)
    assert [line["gateways"][0]["state"] for line in lines] == ["primary", "minority"]
    assert lines[1]["gateways"][0]["reason"] == "two of three are away"
    header, *rows = capsys.readouterr().out.splitlines()
    assert header.split("\t") == ["time", "gateway", "address", "state", "view", "frontier", "lag", "heard", "reason"]
    assert [row.split("\t")[1:] for row in rows] == [
        ["jfk", one.url.removeprefix("tutti://"), "primary", "1.2", "10", "0", "-", "-"]
    ]


def test_ctrl_c_ends_it() -> None:
    with FakeGateway(rule=Gateway("jfk")) as one:
        command = [sys.executable, "-m", "tutti_gateway", "status", "--watch", "--json", "--interval", "0.1", "--url", one.url]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            assert json.loads(process.stdout.readline())["gateways"][0]["gateway"] == "jfk"
            process.send_signal(signal.SIGINT)
            _, err = process.communicate(timeout=20)
    assert (process.returncode, err) == (130, "interrupted\n")
