"""Tests of wrong arguments and unreachable gateways: the error names the value, the place and the remedy, without a delay."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest

from tests.unit.client.delivery.delivery_harness import Rig
from tests.unit.client.fake_gateway import FakeGateway
from tutti.data import client_protocol
from tutti.errors import ConfigError, Refused, Unavailable, UsageError
from tutti.producer import Producer


@pytest.fixture
def gateway() -> Iterator[FakeGateway]:
    with FakeGateway() as fake:
        yield fake


async def _coroutine_function(error: object, receipt: object) -> None:
    """Do nothing: a callback that the I/O thread would call without effect."""


def test_unreachable_gateways_are_listed_with_their_failure_and_the_time_waited() -> None:
    began = time.monotonic()
    with pytest.raises(Unavailable, match=r"within 1\.5 s: 127\.0\.0\.1:1: connection refused; no\.such\.host\.invalid:7: "):
        Producer("tutti://127.0.0.1:1,no.such.host.invalid:7", connect_timeout=1.5)
    assert time.monotonic() - began < 30


def test_a_gateway_that_refuses_it_names_the_reason(gateway: FakeGateway) -> None:
    def deny(heard: Any) -> list[Any] | None:
        if isinstance(heard, client_protocol.OpenProducer):
            return [client_protocol.Denied(heard.request, "not_primary", "two of three gateways are away", retry=True)]
        return None

    gateway.rule = deny
    with pytest.raises(Unavailable, match="two of three gateways are away"):
        Producer(gateway.url, connect_timeout=1.5)
    gateway.rule = lambda heard: (
        [client_protocol.Denied(heard.request, "limit", "10000 producers")]
        if isinstance(heard, client_protocol.OpenProducer)
        else None
    )
    with pytest.raises(Refused, match="10000 producers"):
        Producer(gateway.url)


@pytest.mark.parametrize(
    ("arguments", "error", "said"),
    [
        ({"url": "127.0.0.1:1"}, ConfigError, "does not begin with tutti://"),
        ({"producer": "a b"}, UsageError, "contains ' '"),
        ({"producer": "~x"}, UsageError, "'~'"),
        ({"producer": ""}, UsageError, "not a valid producer name"),
        ({"producer": 5}, UsageError, "must be text, not int"),
        ({"compression": "gzip"}, UsageError, "'gzip' is not supported"),
        ({"on_full": "drop"}, UsageError, "on_full='drop'"),
        ({"linger": -1}, UsageError, "linger must be a number of seconds from 0 to 9223372036, not -1"),
        ({"batch_bytes": "1"}, UsageError, "batch_bytes must be a whole number of bytes, not '1'"),
        ({"batch_bytes": 1e5}, UsageError, "batch_bytes must be a whole number of bytes, not 100000.0"),
        ({"buffer_bytes": "1"}, UsageError, "buffer_bytes must be a whole number of bytes, not '1'"),
        ({"buffer_bytes": True}, UsageError, "buffer_bytes must be a whole number of bytes, not True"),
        ({"compression": ["lz4"]}, UsageError, "['lz4'] is not supported"),
        ({"linger": "1"}, UsageError, "linger must be a number of seconds from 0 to 9223372036, not '1'"),
        ({"batch_bytes": 10}, UsageError, "batch_bytes=10"),
        ({"buffer_bytes": 10}, UsageError, "buffer_bytes=10"),
        ({"delivery_timeout": 0}, UsageError, "must be longer than linger"),
        ({"connect_timeout": float("inf")}, UsageError, "connect_timeout"),
        ({"credentials": 7}, UsageError, "must be a Credentials or the path of a file with them, not int"),
        ({"credentials": "/no/such/file"}, ConfigError, "/no/such/file cannot be read"),
    ],
)
def test_wrong_options_are_reported(arguments: dict[str, Any], error: type[Exception], said: str) -> None:
    with pytest.raises(error, match=re.escape(said)):
        Producer(**{"url": "tutti://127.0.0.1:1", **arguments})


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"topic": "a b"}, "the topic name 'a b' contains ' '"),
        ({"topic": ""}, "not a valid topic name"),
        ({"topic": None}, "not NoneType"),
        ({"topic": ["t"]}, "a topic name must be text, not list (['t'])"),
        ({"value": "text"}, "not str"),
        ({"key": 5}, "not int"),
        ({"ordering": "unordered", "progress": b"p"}, "progress needs the total order"),
        ({"ordering": "total order"}, "unknown"),
        ({"progress": "p"}, "not str"),
        ({"on_delivery": 5}, "not int"),
        ({"on_delivery": _coroutine_function}, "not a coroutine function"),
        ({"headers": [("a", "b")]}, "not str"),
        ({"timestamp": "now"}, "not str"),
    ],
)
def test_wrong_arguments_are_reported_and_nothing_is_sent(gateway: FakeGateway, arguments: dict[str, Any], said: str) -> None:
    with Producer(gateway.url) as p:
        with pytest.raises(UsageError, match=re.escape(said)):
            p.send(**{"topic": "t", "value": b"x", **arguments})
        assert len(p) == 0
        with pytest.raises(UsageError, match="ordering 'none' is unknown: use 'total' or 'unordered'"):
            p.send_batch("t", pa.record_batch({"value": pa.array([b"y"])}), ordering="none")
        assert p.send("t", b"fine").result(10) == 0


@pytest.mark.parametrize("timeout", ["a", b"1", float("nan"), True, 10**400])
def test_an_invalid_timeout_is_reported(timeout: Any) -> None:
    rig = Rig().ready()
    receipt = rig.send()
    with pytest.raises(UsageError, match=re.escape(f"timeout must be a number of seconds up to 9223372036, not {timeout!r}")):
        receipt.result(timeout)
    with pytest.raises(TimeoutError):
        receipt.result(-0.1)  # a deadline that passed: over, and no mistake
    rig.topic()
    rig.commit(rig.frames()[0], 7)
    assert receipt.result(0) == 7
