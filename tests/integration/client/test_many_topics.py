"""Tests of reads of more topics than fit into a page: patterns over thousands of topics, existing and new."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from pyspark.sql.datasource import InputPartition

from tests.support.gateway_process import GatewayProcess
from tutti import Producer
from tutti_spark.common.options import parse
from tutti_spark.source.batch import BatchReader
from tutti_spark.source.stream import StreamReader

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]
TOPICS = 2_500  # a gateway registers some hundred a second


def values(reader: BatchReader | StreamReader, partitions: list[InputPartition]) -> list[bytes | None]:
    """What tasks read, in order."""
    return [value for part in partitions for batch in reader.read(part) for value in batch.column("value").to_pylist()]


def test_a_pattern_over_thousands_of_topics(tmp_path: Path) -> None:
    """Proves that a batch and a stream read all topics that match and no other, from gateways (with and without their files) and
    from files, whichever question names the topics. Their names are more than 64 KiB.
    """
    names = [f"sensor.{number:05}.{'x' * 40}" for number in range(TOPICS - 1)]
    with GatewayProcess(tmp_path) as gateway:
        with Producer(gateway.url, delivery_timeout=240) as producer:
            producer.send("other", b"other")
            receipts = [producer.send(name, name.encode()) for name in names]
        assert [receipt.result(timeout=240) for receipt in receipts] == list(range(1, TOPICS))
        sent = [name.encode() for name in names]
        read = {"gateways": gateway.url, "topicsPattern": r"sensor\..*", "columns": "value"}
        for more in ({}, {"shortCircuit": "false"}, {"minPartitions": "8"}):
            reader = BatchReader(parse(read | more, "batch"))
            assert values(reader, reader.partitions()) == sent

        stream = StreamReader(parse(read | {"startingOffset": "0", "maxBytesPerTrigger": str(1 << 20)}, "stream"))
        start = stream.initialOffset()
        found: list[bytes | None] = []
        while len(found) < TOPICS - 1:
            end = stream.latestOffset(start, stream.getDefaultReadLimit())
            if end == start:
                time.sleep(0.01)
                continue
            found += values(stream, stream.partitions(start, end))
            start = end
        stream.stop()
        assert found == sent

    files = BatchReader(parse({"path": str(gateway.data), "topicsPattern": r"sensor\..*", "columns": "value"}, "batch"))
    assert values(files, files.partitions()) == sent
