"""Tests of the parts of kafka-out that need no Kafka: repeated warnings, messages, positions, and the configuration."""

from __future__ import annotations

import logging
from functools import partial
from pathlib import Path

import pytest

from tests.unit.connectors.kafka.test_sink_connector import LOG, batch
from tutti.errors import ConfigError, FormatError
from tutti_connect.kafka import config as configs
from tutti_connect.kafka import limits
from tutti_connect.kafka.config import load_sink_config
from tutti_connect.kafka.repeated_warnings import RepeatFilter
from tutti_connect.kafka.sink.messages import outgoing_records
from tutti_connect.kafka.sink.position import Position, check_same_log, decode_position


def test_the_same_line_passes_once_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    once = RepeatFilter(lambda: now[0])
    line = partial(logging.LogRecord, "n", logging.WARNING, "", 0, args=None, exc_info=None)
    assert once.filter(line(msg="FAIL: 127.0.0.1:1 refused (after 3ms)"))
    assert not once.filter(line(msg="FAIL: 127.0.0.1:1 refused (after 17ms)"))
    assert once.filter(line(msg="FAIL: another thing"))
    now[0] = limits.REPEATED_LINE_S
    assert once.filter(line(msg="FAIL: 127.0.0.1:1 refused (after 3ms)"))
    monkeypatch.setattr(limits, "LINES_MAX", 2)
    for number in range(10):
        once.filter(line(msg=f"FAIL {'x' * number}"))
    assert len(once._muted_until) <= 2


def test_records_become_messages() -> None:
    """Proves that the time is cut to milliseconds, that one before 1970 is refused, and that the offset's header is the last."""
    rows = batch([4, 5], times=[-1, 1_999])
    first, second = outgoing_records(rows, "at")
    assert (first.time_ms, second.time_ms) == (-1, 1)
    assert "Kafka rejects negative times" in first.reason
    assert (second.reason, second.headers) == ("", [("at", b"5")])
    assert [record.headers for record in outgoing_records(rows)] == [None, None]
    assert first.fields(LOG)["value_base64"] == "AAAAAAAAAAAAAA=="


def test_a_position_comes_back_from_kafka() -> None:
    position = Position(LOG, 17, "one")
    assert decode_position(position.encode(), "p") == position
    with pytest.raises(FormatError, match=r"kafka\.position_topic"):
        decode_position(b"somebody else's", "p")
    with pytest.raises(ConfigError, match="its position is in topic p"):
        check_same_log(position, "other", "out", "p")


GOOD = 'name = "out"\ngateways = "tutti://127.0.0.1:7400"\nquarantine = "q"\n[kafka]\nservers = "127.0.0.1:9092"\n'


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ('name = "out"', "gateways is missing"),
        (GOOD + 'order = "any"\n', '"key" or "total"'),
        (GOOD + 'topic = "a"\nnames = { b = "c" }\n', "remove one of them"),
        (GOOD + 'topic = "tutti.out.position"\n', "choose a separate topic"),
        (GOOD + 'names = { b = "c d" }\n', "kafka.names.b is 'c d'"),
        (GOOD + 'position_topic = "c d"\n', "kafka.position_topic is 'c d'"),
        (GOOD + "[transaction]\nrecords = 0\n", "a whole number from 1 to 100000"),
        ('topics = ["a b"]\n' + GOOD, "topics has is 'a b'"),
        (GOOD.replace('"out"', '"a b"'), "name is 'a b'"),
        (GOOD + 'topic = "__consumer_offsets"\n', "kafka.topic is '__consumer_offsets', a topic reserved for Kafka"),
        (GOOD + 'position_topic = "__transaction_state"\n', "kafka.position_topic is '__transaction_state', a topic reserved"),
        (GOOD + 'names = { b = "__cluster_metadata" }\n', "kafka.names.b is '__cluster_metadata', a topic reserved"),
        ('topics = ["__share_group_state"]\n' + GOOD, "records of topic '__share_group_state' (topics) would go to"),
        ('topics = ["tutti.out.position"]\n' + GOOD, "records of topic 'tutti.out.position' (topics) would go to"),
    ],
)
def test_mistakes_in_the_configuration_are_reported(tmp_path: Path, text: str, told: str) -> None:
    file = tmp_path / "out.toml"
    file.write_text(text)
    with pytest.raises(ConfigError) as raised:
        load_sink_config(str(file))
    assert told in str(raised.value)


def test_the_example_is_right() -> None:
    config = load_sink_config(str(Path(__file__).parents[4] / "conf" / "connectors" / "kafka-out.toml"))
    assert (config.position_topic, config.transaction) == ("tutti.orders-out.position", configs.Transaction())
