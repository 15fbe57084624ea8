"""Tests of kafka-out with a Kafka topic that accepts no records: it ends with the topic's name, and skips or reorders nothing."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.unit.connectors.kafka.test_sink_connector import FakeLog, Kafka, outflow_of, run
from tutti.errors import ConfigError


@pytest.mark.parametrize(("where", "told"), [("target", "topic u is reserved for Kafka"), ("commit", "authorization failed")])
def test_a_topic_that_accepts_no_record_ends_it_by_name_and_nothing_overtakes(tmp_path: Path, where: str, told: str) -> None:
    """Proves that the error names the first record that cannot go, and how far Kafka is; and that all others come, in order, once
    the topic is left out.
    """
    kafka, log = Kafka(), FakeLog(100, lambda offset: offset % 3 != 0 or offset > 50)  # of "u", from 51 on
    kafka.closed = {"u": where}
    outflow = outflow_of(tmp_path, log, kafka)
    with pytest.raises(
        ConfigError, match=f"the record at offset 51 of topic 'u' cannot be written to Kafka: .*{told}.*topics"
    ) as raised:
        run(outflow, log)
    assert f"Kafka has all records below offset {outflow.next}," in str(raised.value)
    assert kafka.records == [("t", offset) for offset in range(outflow.next) if offset % 3]
    assert outflow.next == 51 or where == "target"
    assert outflow.quarantine.count == 0
    log.wanted = lambda offset: offset % 3 != 0
    run(outflow_of(tmp_path, log, kafka, "two"), log)
    assert [offset for _, offset in kafka.records] == [offset for offset in range(100) if offset % 3]


def test_a_topic_that_does_not_accept_the_position_ends_it_by_name(tmp_path: Path) -> None:
    kafka, log = Kafka(), FakeLog(10)
    kafka.position_closed = True
    with pytest.raises(ConfigError, match=r"topic tutti\.out\.position rejects the connector's position \(Topic"):
        run(outflow_of(tmp_path, log, kafka), log)
