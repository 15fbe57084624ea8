"""Tests of small parts of the HTTP connector: the configuration, bounded receipts that expire, and the memory budget for bodies."""

from __future__ import annotations

import asyncio
from datetime import datetime
from pathlib import Path
from types import SimpleNamespace

import pytest
from starlette.requests import Request

from tutti.errors import (
    Aborted,
    BufferFull,
    ConfigError,
    Damaged,
    Fenced,
    OffsetOutOfRange,
    Refused,
    TooLarge,
    TuttiError,
    Unavailable,
    Unknown,
    UsageError,
)
from tutti_connect.http import limits
from tutti_connect.http.config import load_http
from tutti_connect.http.handlers import Service
from tutti_connect.http.interface.operations import OPERATIONS
from tutti_connect.http.interface.problems import Problem, problem_of
from tutti_connect.http.interface.requests import bound, query_of
from tutti_connect.http.produce.body_reader import BodyReader, BodyReservation
from tutti_connect.http.produce.receipts import Receipts

CONF = Path(__file__).parents[4] / "conf" / "connectors"
LEAST = 'name = "web"\ngateways = "tutti://127.0.0.1:7400"\n'


@pytest.mark.parametrize("text", ["0001-01-01T00:00:00+14:00", "9999-12-31T23:59:59.999999-12:00", "2026-01-31T12:00:00+01:00:30"])
def test_a_time_at_the_edge_of_the_calendar_is_a_place(text: str) -> None:
    """It was answered by 500, and a long one was cut in its zone."""
    padded = text.replace(":00+", ":00." + "0" * 41 + "+")
    for given in (text, padded):
        found = bound({"start": given}, "start")
        assert isinstance(found, datetime)
        assert found == datetime.fromisoformat(text)


@pytest.mark.parametrize(
    "text", ["9" * 5000, "1" * 64 + "x", "9223372036854775808", "9999-12-31T23:59:59.9999999Z", "2026-01-31T12:00:00"]
)
def test_an_invalid_position_is_the_callers_mistake(text: str) -> None:
    with pytest.raises(Problem) as told:
        bound({"start": text}, "start")
    assert told.value.status == 400
    assert len(str(told.value)) < 300


def test_the_example_is_valid() -> None:
    config = load_http(str(CONF / "http.toml"))
    assert (config.name, config.address, config.insecure) == ("web", ("127.0.0.1", 7480), False)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ('name = "a b"\ngateways = "tutti://127.0.0.1:7400"\n', "name is 'a b'"),
        ('name = ".."\ngateways = "tutti://127.0.0.1:7400"\n', r"name is '\.\.'"),
        ('name = "web"\ngateways = "http://127.0.0.1"\n', "gateways"),
        (LEAST + 'listen = "7480"', "http.toml: listen: '7480' has no host or no port: write HOST:PORT"),
        (LEAST + 'listen = "]x[:1"', "is not a host"),
        (LEAST + 'listen = "127.0.0.1:99999"', "write HOST:PORT"),
        (LEAST + 'listen = "127.0.0.1:²"', "write HOST:PORT"),
        (LEAST + 'listen = "0.0.0.0:7480"', "any of them may write"),
        (LEAST + 'listen = "example:7480"\n[tls]\ncertificate = "c"\nkey = "k"\n', "any of them may write"),
        (LEAST + '[tls]\ncertificate = "c"\n', "set both files, or neither"),
        (LEAST + "port = 3\n", "port"),
    ],
)
def test_mistakes_in_the_configuration_are_reported(tmp_path: Path, text: str, told: str) -> None:
    path = tmp_path / "http.toml"
    path.write_text(text)
    with pytest.raises(ConfigError, match=told):
        load_http(str(path))


def test_other_hosts_are_admitted_if_configured(tmp_path: Path) -> None:
    path = tmp_path / "http.toml"
    for more in ("insecure = true", 'tokens = "t"\n[tls]\ncertificate = "c"\nkey = "k"'):
        path.write_text(f'{LEAST}listen = "[::]:0"\n{more}\n')
        assert load_http(str(path)).address == ("::", 0)


def test_receipts_are_bounded_and_expire(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "RECEIPTS_MAX", 3)
    now = 0.0
    receipts = Receipts(lambda: now)
    one, two, three = (receipts.open() for _ in range(3))
    with pytest.raises(Problem, match="retry later"):
        receipts.open()
    receipts.resolve(one, {"state": "committed"})
    receipts.resolve(two, {"state": "failed"})
    assert receipts.get(one) == {"id": one, "state": "committed"}
    four = receipts.open()
    with pytest.raises(Problem, match="no such receipt"):
        receipts.get(one)
    assert receipts.get(two)["state"] == "failed"
    now = limits.RECEIPT_S + 1
    with pytest.raises(Problem):
        receipts.get(two)
    assert [receipts.get(name)["state"] for name in (three, four)] == ["pending", "pending"]
    assert receipts.pending == 2


def test_receipts_of_a_spool_are_pending_as_long_as_it_holds_the_post(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "RECEIPTS_MAX", 3)
    now = 0.0
    receipts = Receipts(lambda: now)
    spooled = [receipts.open_spooled() for _ in range(9)]
    now = limits.RECEIPT_S + 1
    receipts.open()
    assert [receipts.get(name)["state"] for name in spooled] == ["pending"] * 9
    for name in spooled:
        receipts.resolve(name, {"state": "committed"})
    assert [receipts.get(name)["state"] for name in spooled[-2:]] == ["committed"] * 2
    with pytest.raises(Problem, match="no such receipt"):
        receipts.get(spooled[-3])
    refused = receipts.open_spooled()
    receipts.drop(refused)
    receipts.resolve(refused, {"state": "failed"})
    with pytest.raises(Problem, match="no such receipt"):
        receipts.get(refused)


def test_memory_for_bodies_is_released(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "BODIES_BYTES_MAX", 100)
    body_reader = BodyReader()
    one, other = BodyReservation(body_reader), BodyReservation(body_reader)
    one.grow(60)
    one.grow(40)
    other.grow(40)
    with pytest.raises(Problem) as caught:
        other.grow(41)
    assert (caught.value.status, caught.value.headers()["retry-after"]) == (429, "1")
    one.release()
    one.release()
    other.grow(100)
    assert body_reader.reserved_bytes == 100


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (TooLarge("x"), 413),
        (BufferFull("x"), 429),
        (Unknown("x"), 503),
        (Fenced("x"), 503),
        (Aborted("x"), 503),
        (Unavailable("x"), 503),
        (OffsetOutOfRange("x"), 416),
        (Refused("x"), 422),
        (UsageError("x"), 400),
        (Damaged("x"), 500),
    ],
)
def test_errors_of_the_client_have_their_status(error: TuttiError, status: int) -> None:
    assert problem_of(error).status == status


def test_a_spool_of_another_log_reports_nothing() -> None:
    assert problem_of(Refused("was forgotten", "spool")).fields["committed"] == "unknown"
    assert problem_of(Refused("no such topic", "topic")).fields["committed"] == "no"


def test_an_event_that_is_no_offset_is_refused() -> None:
    service = Service.__new__(Service)
    service.authorizer = SimpleNamespace(check_read=lambda *_: bool)  # type: ignore[assignment]  # in its place
    service.health = SimpleNamespace(busy=False)  # type: ignore[assignment]  # in its place
    scope = {"type": "http", "headers": [(b"last-event-id", "²".encode("latin-1"))]}
    with pytest.raises(Problem, match="the offset of the last event"):
        asyncio.run(service.stream(Request(scope), {}))


def test_the_table_lists_the_existing_operations() -> None:
    """Every operation has its handler, every answer says what it means, and options are taken strictly."""
    for operation in OPERATIONS:
        assert callable(getattr(Service, operation.handler))
        assert operation.answers
        assert all(f"{{{one.name}}}" in operation.path for one in operation.parameters if one.where == "path")
    with pytest.raises(Problem, match="is given twice"):
        query_of([("a", "1"), ("a", "2")], ["a"])
