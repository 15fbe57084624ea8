"""Tests of the connectors' errors if Kafka is down or refuses connections, with Kafka's own client, and if gateways are."""

from __future__ import annotations

import logging
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
from confluent_kafka import KafkaError

from tutti.errors import Unavailable
from tutti_connect.kafka import config as configs
from tutti_connect.kafka import limits
from tutti_connect.kafka.client import CLIENT_LOG, CONNECTION_FAILURES, ConnectionFailureFilter, with_cause
from tutti_connect.kafka.errors import RetryTransaction
from tutti_connect.kafka.gateway_clients import gateway_check
from tutti_connect.kafka.sink.producer import KafkaWriter
from tutti_connect.kafka.source.consumer import KafkaSource

NOBODY = "127.0.0.1:1"


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """Shorten the retries of Kafka's client; its log lines are captured, as in the command."""
    monkeypatch.setattr(limits, "KAFKA_S", 2.0)
    caplog.set_level(logging.INFO, CLIENT_LOG.name)


@pytest.fixture
def closing() -> Iterator[str]:
    """The address of a port that ends each connection without a word, as a broker does that is spoken to in another protocol."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            while True:
                try:
                    connection, _ = listener.accept()
                except OSError:
                    return
                connection.close()

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield f"127.0.0.1:{listener.getsockname()[1]}"
        listener.shutdown(socket.SHUT_RDWR)
        thread.join()


@pytest.mark.parametrize(("port", "told"), [("nobody", "Connection refused"), ("closing", "Disconnected")])
def test_an_unreachable_kafka_is_reported_with_the_cause(
    port: str, told: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """Proves it for both directions: a bare timeout does not show that no process listens, or that SASL or TLS is required."""
    address = NOBODY if port == "nobody" else request.getfixturevalue(port)
    settings: dict[str, str | int | float | bool] = {
        "security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "PLAIN", "sasl.username": "u", "sasl.password": "p"
    }  # fmt: skip
    target = configs.Target(address, settings=settings)
    with pytest.raises(RetryTransaction, match=rf"Kafka at {address}, position topic tutti\.o\.position: .*{address}.*{told}"):
        KafkaWriter(configs.SinkConfig("o", "tutti://127.0.0.1:1", target, str(tmp_path))).open()
    source = configs.Source(address, ["t"], settings=settings)
    with pytest.raises(Unavailable, match=rf"Kafka at {address}: .*{address}.*{told}"):
        KafkaSource(configs.SourceConfig("i", "tutti://127.0.0.1:1", source, str(tmp_path))).topics()


def test_topics_that_are_known_to_be_there_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Proves that they are requested again if there are more."""
    monkeypatch.setattr(limits, "TARGETS_MAX", 2)
    sink = KafkaWriter(configs.SinkConfig("o", "tutti://127.0.0.1:1", configs.Target(NOBODY), str(tmp_path)))
    asked: list[str] = []
    monkeypatch.setattr(sink, "_ensure", asked.append)
    monkeypatch.setattr(sink, "_topic_configuration", lambda _name: {"max.message.bytes": SimpleNamespace(value=2**30)})
    for topic in "abbacca":
        assert sink.target_of(topic) == topic
        assert len(sink._existing) <= 2
    assert asked == ["a", "b", "c", "a"]


def test_only_a_connection_that_failed_since_is_the_cause() -> None:
    """Proves that earlier lines, and lines of another kind, are not reported as its cause."""
    cause = ConnectionFailureFilter()

    def say(text: str) -> None:
        assert cause.filter(logging.LogRecord("n", logging.ERROR, "", 0, text, None, None)), "all lines go on to the log"

    say("FAIL [rdkafka#producer-1] [thrd:[::1]:9092/bootstrap]: [::1]:9092/bootstrap: Connect failed: refused")
    assert cause.failure_since(0.0) == "[::1]:9092: Connect failed: refused"
    at, _ = cause._last
    say("ERROR [rdkafka#producer-1] [thrd:main]: 1/1 brokers are down")
    assert cause.failure_since(at) == "[::1]:9092: Connect failed: refused"
    assert cause.failure_since(at + 1) == ""
    assert CONNECTION_FAILURES in CLIENT_LOG.filters


@pytest.mark.parametrize(
    ("code", "refused"),
    [
        (KafkaError._TIMED_OUT, True),
        (KafkaError._ALL_BROKERS_DOWN, True),
        (KafkaError._FATAL, False),
        (KafkaError._STATE, False),
        (KafkaError.TOPIC_AUTHORIZATION_FAILED, False),
    ],
)
def test_a_failed_connection_is_the_cause_only_of_errors_that_it_can_cause(
    monkeypatch: pytest.MonkeyPatch, code: int, refused: bool
) -> None:
    monkeypatch.setattr(CONNECTION_FAILURES, "failure_since", lambda since: "k:9092: refused")
    said = with_cause(KafkaError(code, "its own words"), 0.0)
    assert ("k:9092: refused" in said, "its own words" in said) == (refused, not refused)


@pytest.mark.parametrize(
    ("line", "words"),
    [
        (
            "h:1/bootstrap: Connect to ipv4#127.0.0.1:1 failed: Connection refused (after 0ms in state CONNECT)",
            "h:1: Connection refused",
        ),
        (
            "h:1/7: Failed to resolve 'h:1': Name or service not known (after 1ms in state CONNECT)",
            "h:1: cannot resolve the host name: Name or service not known",
        ),
        (
            "h:1/bootstrap: Receive failed: Invalid response size -16777216 (0..100000000): increase receive.message.max.bytes "
            "(after 0ms in state APIVERSION_QUERY)",
            "h:1: the port does not speak Kafka's protocol, or needs TLS",
        ),
        ("h:1/bootstrap: SASL authentication error: wrong password", "h:1: SASL authentication error: wrong password"),
    ],
)
def test_a_connection_failure_is_told_in_plain_words(line: str, words: str) -> None:
    cause = ConnectionFailureFilter()
    text = f"FAIL [rdkafka#producer-1] [thrd:h:1/bootstrap]: {line}"
    assert cause.filter(logging.LogRecord("n", logging.ERROR, "", 0, text, None, None))
    assert cause.failure_since(0.0) == words


def test_unreachable_gateways_are_reported() -> None:
    with pytest.raises(Unavailable, match=NOBODY):
        gateway_check(f"tutti://{NOBODY}")()
