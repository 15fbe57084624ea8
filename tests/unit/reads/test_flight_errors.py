"""Tests of Flight errors: each error has a code, a sentence and the fitting Flight class, and never shows the
server's internals.
"""

import json
import logging

import pyarrow as pa
import pytest
from pyarrow import flight

from tutti.errors import Aborted, Behind, Damaged, DiskFailed, Unavailable, UsageError
from tutti_gateway.core import limits
from tutti_gateway.reads.protocol.flight_errors import (
    ReadError,
    SchemaError,
    converting_corruption,
    flight_error,
    raises_flight_errors,
    raises_schema_errors,
)


def info(error: flight.FlightError) -> dict[str, object]:
    return dict(json.loads(error.extra_info))


@pytest.mark.parametrize(
    ("error", "kind", "code"),
    [
        (ReadError("busy", "no place"), flight.FlightUnavailableError, "busy"),
        (ReadError("beyond_frontier", "too far", frontier=3), flight.FlightServerError, "beyond_frontier"),
        (Behind("behind"), flight.FlightUnavailableError, "behind"),
        (Unavailable("gone"), flight.FlightUnavailableError, "unavailable"),
        (Damaged("position 5"), flight.FlightInternalError, "damaged"),
        (UsageError("wrong"), flight.FlightServerError, "malformed"),
        (Aborted("void"), flight.FlightServerError, "refused"),
        (DiskFailed("gone"), flight.FlightInternalError, "internal"),
    ],
)
def test_each_error_has_its_kind_and_code(error: Exception, kind: type, code: str) -> None:
    made = flight_error(error)
    assert type(made) is kind
    assert info(made)["code"] == code
    assert info(made)["message"] == str(error)


@pytest.mark.parametrize(("others", "code"), [(True, "unavailable"), (False, "damaged")])
def test_corruption_is_reported_for_repair_and_redirects_if_there_are_other_gateways(others: bool, code: str) -> None:
    asked: list[tuple[str, int]] = []

    def elsewhere(lane: str, position: int) -> bool:
        asked.append((lane, position))
        return others

    with pytest.raises(ReadError) as told_of, converting_corruption(elsewhere, "a lane"):
        raise Damaged("a frame is not whole", 7)
    assert (told_of.value.code, asked) == (code, [("a lane", 7)])
    assert "a frame is not whole" in str(told_of.value)


def test_fields_travel() -> None:
    assert info(flight_error(ReadError("behind", "x", frontier=3, seen=9))) == {
        "code": "behind",
        "message": "x",
        "frontier": 3,
        "seen": 9,
    }
    assert info(flight_error(Aborted("void")))["reason"] == "aborted"


def test_a_fault_of_the_server_is_logged_and_not_shown(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.ERROR):
        made = flight_error(ZeroDivisionError("inside/secret.py"))
    assert info(made)["code"] == "internal"
    assert "secret" not in str(made)
    assert "secret" in caplog.text


def test_nothing_else_gets_out() -> None:
    @raises_flight_errors
    def fails(error: Exception) -> None:
        raise error

    for error in (KeyError("x"), pa.ArrowInvalid("x"), ReadError("busy", "x"), RecursionError()):
        with pytest.raises(flight.FlightError):
            fails(error)
    assert raises_flight_errors(lambda: 5)() == 5


def test_errors_as_clients_see_them() -> None:
    """The library's own behaviour, on which the texts of this server rest."""

    class Server(flight.FlightServerBase):
        @raises_flight_errors
        def do_action(self, context: flight.ServerCallContext, action: flight.Action) -> list[bytes]:
            raise ReadError(action.type, "é" * 5000, frontier=7)

    with Server("grpc://127.0.0.1:0") as server, flight.connect(f"grpc://127.0.0.1:{server.port}") as client:
        with pytest.raises(flight.FlightUnavailableError) as busy:
            list(client.do_action(flight.Action("busy", b"")))
        with pytest.raises(flight.FlightServerError) as beyond:
            list(client.do_action(flight.Action("beyond_frontier", b"")))
    assert info(busy.value)["code"] == "busy"
    assert info(beyond.value) == {"code": "beyond_frontier", "message": "é" * (limits.ERROR_TEXT_BYTES_MAX // 2), "frontier": 7}
    assert "Traceback" not in str(busy.value) + str(beyond.value)


@pytest.mark.parametrize(
    "error",
    [
        ReadError("malformed", "é" * 5000),
        UsageError("wrong"),
        Unavailable("gone"),
        KeyError("x"),
        ZeroDivisionError("inside/secret.py"),
    ],
)
def test_an_error_of_get_schema_has_its_sentence_and_no_traceback(error: Exception) -> None:
    class Server(flight.FlightServerBase):
        @raises_schema_errors
        def get_schema(self, context: flight.ServerCallContext, descriptor: flight.FlightDescriptor) -> flight.SchemaResult:  # type: ignore[override]  # as in the server
            raise error

    descriptor = flight.FlightDescriptor.for_command(b"{}")
    with (
        Server("grpc://127.0.0.1:0") as server,
        flight.connect(f"grpc://127.0.0.1:{server.port}") as client,
        pytest.raises(pa.ArrowException) as answer,
    ):
        client.get_schema(descriptor)
    text = str(answer.value)
    assert str(info(flight_error(error))["message"]) in text
    assert not any(word in text for word in ("Traceback", ".py", "secret", "/"))


def test_nothing_but_a_schema_error_gets_out_of_get_schema() -> None:
    @raises_schema_errors
    def fails() -> None:
        raise KeyError("x")

    with pytest.raises(SchemaError, match="the reads process failed"):
        fails()
    assert raises_schema_errors(lambda: 5)() == 5
