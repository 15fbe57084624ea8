"""Start offsets of the partitions with `start = "latest"`: resolved once, before the first instance is ready.

The start offset of each partition is committed to the log as the progress of its producer, without a record. Afterwards the
progress of one more producer, `NAME.TOPIC.start`, marks the topic as started. A partition without progress in a started topic was
added later, and starts at its beginning.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple, Protocol

from tutti_connect.kafka.source.batches import Source
from tutti_connect.kafka.source.partition_copy import Key
from tutti_connect.kafka.source.position import KafkaPosition, check_same, metadata_topic, producer_name

LOG = logging.getLogger("tutti.kafka")

#: Commits progress without a record: producer, topic in the log, and a function from the committed progress to the next one.
Committer = Callable[[str, str, Callable[[bytes], bytes]], bytes]
#: Calls a function with each number, possibly in parallel, and returns after all calls have ended.
ForEach = Callable[[Callable[[int], object], Iterable[int]], None]


class Ends(Protocol):
    """Requests to Kafka; implemented by `tutti_connect.kafka.source.consumer.KafkaSource`."""

    def topics(self) -> dict[str, Source]:
        """Return the ids of the topics."""

    def end_offsets(self, topic: str) -> dict[int, int]:
        """Return the end offset of each partition."""

    def group_offsets(self, keys: Iterable[Key]) -> dict[Key, tuple[int, str]]:
        """Return the offset and metadata committed by the group."""


class Topic(NamedTuple):
    """A topic to start: the connector's name, the topic in Kafka, and the topic in the log."""

    connector: str
    source: Source
    target: str

    @property
    def start_producer(self) -> str:
        """Return the name of the producer whose progress marks the topic as started."""
        return producer_name(self.connector, self.source.topic, "start")

    def progress_at(self, offset: int) -> bytes:
        """Return the progress of a partition's producer."""
        return KafkaPosition(self.source.cluster, self.source.topic_id, offset).encode()


def resolve_latest(
    topic: Topic, kafka: Ends, commit: Committer, check_topics: Callable[[Mapping[str, Source]], None], for_each: ForEach
) -> None:
    """Commit the start offset of each partition, unless the topic has started before.

    Raises:
        ConfigError: the topic started in another Kafka cluster, or `check_topics`, called after reading the ends, rejects it.
        TuttiError: Kafka or the gateways do not answer. A repeated call continues after the committed offsets.
    """
    if _has_started(topic, commit):
        return
    name = topic.source.topic
    ends = kafka.end_offsets(name)
    group_offsets = kafka.group_offsets([(name, number) for number in ends])  # an earlier release kept the start offset there
    check_topics(kafka.topics())

    def start(number: int) -> None:
        offset, metadata = group_offsets[name, number]
        known = offset >= 0 and metadata_topic(metadata) in ("", topic.source.topic_id)
        start_progress = topic.progress_at(offset if known else ends[number])
        commit(producer_name(topic.connector, name, number), topic.target, lambda progress: b"" if progress else start_progress)

    for_each(start, ends)
    marker = topic.progress_at(len(ends))
    commit(topic.start_producer, topic.target, lambda progress: b"" if progress else marker)
    LOG.info("%s: topic %s starts at latest: %s", topic.connector, name, ", ".join(f"[{n}] {end}" for n, end in ends.items()))


def _has_started(topic: Topic, commit: Committer) -> bool:
    """Return True if the log marks the topic as started; a later topic of the same name counts, because all its messages are new.

    Raises:
        ConfigError: the topic started in another cluster.
    """
    found = b""

    def read_progress(progress: bytes) -> bytes:
        nonlocal found
        found = progress
        return b""

    producer = topic.start_producer
    commit(producer, topic.target, read_progress)
    if not found:
        return False
    position = KafkaPosition.decode(found, producer)
    check_same(position, KafkaPosition(topic.source.cluster, position.topic, 0), producer, topic.source.topic)
    return True
