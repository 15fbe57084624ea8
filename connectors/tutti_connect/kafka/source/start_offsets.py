"""Start offsets of the partitions with `start = "latest"`: resolved once for each topic, before the first instance is ready.

Each start offset is committed to the log as the progress of the partition's producer, without a record. Then a commit of producer
`NAME.TOPIC.start` marks the topic as started. A partition of a started topic that has no progress was added later, and is copied
from its beginning.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple, Protocol

from tutti_connect.kafka.source.batches import Source
from tutti_connect.kafka.source.partition_copy import Key
from tutti_connect.kafka.source.position import KafkaPosition, check_same, metadata_topic, producer_name

LOG = logging.getLogger("tutti.kafka")

#: Function that commits progress without a record, from a producer name, a topic, and a function (old progress -> new progress).
Committer = Callable[[str, str, Callable[[bytes], bytes]], bytes]
#: Calls a function with each number, possibly in parallel, and returns after all calls have ended.
ForEach = Callable[[Callable[[int], object], Iterable[int]], None]


class Ends(Protocol):
    """Interface for requests to Kafka, implemented by `tutti_connect.kafka.source.consumer.KafkaSource`."""

    def topics(self) -> dict[str, Source]:
        """Return the ids of the topics."""

    def end_offsets(self, topic: str) -> dict[int, int]:
        """Return the end offset of each partition, before any open transaction."""

    def group_offsets(self, keys: Iterable[Key]) -> dict[Key, tuple[int, str]]:
        """Return the offsets and metadata that the consumer group has committed."""


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
        """Encode an offset of this topic in the format of a producer's progress, which the log stores."""
        return KafkaPosition(self.source.cluster, self.source.topic_id, offset).encode()


def resolve_latest(
    topic: Topic, kafka: Ends, commit: Committer, check_topics: Callable[[Mapping[str, Source]], None], for_each: ForEach
) -> None:
    """Commit the start offset of each partition, unless the topic has started before.

    Raises:
        ConfigError: the topic started in another Kafka cluster, or `check_topics` found a recreated topic.
        TuttiError: Kafka or the gateways do not answer; a repeated call keeps the offsets that are already committed.
    """
    if _has_started(topic, commit):
        return
    name = topic.source.topic
    ends = kafka.end_offsets(name)
    group_offsets = kafka.group_offsets([(name, number) for number in ends])  # earlier releases stored the start offset there
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
    """Return True if the log marks the topic as started, also under an earlier topic id.

    A recreated topic is thus copied from its beginning, because all its messages are newer than the start.

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
