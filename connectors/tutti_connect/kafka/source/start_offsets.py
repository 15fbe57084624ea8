"""Where the partitions of a topic start with `start = "latest"`: resolved once, before the first instance is ready.

The start offset of each partition is committed to the log as the progress of its producer, without a record. After all of them the
progress of one more producer, `NAME.TOPIC.start`, is committed. From then on the topic has started: a partition without progress
was added since, and starts at its beginning.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple, Protocol

from tutti_connect.kafka.source.batches import Source
from tutti_connect.kafka.source.partition import Key
from tutti_connect.kafka.source.progress import Place, check_same, producer_name, topic_of_note

LOG = logging.getLogger("tutti.kafka")

#: Commits a progress without a record: producer, topic in the log, and what returns the next progress, given the committed one.
Committer = Callable[[str, str, Callable[[bytes], bytes]], bytes]
#: Calls a function with each number, perhaps in parallel, and returns when all calls have ended.
ForEach = Callable[[Callable[[int], object], Iterable[int]], None]


class Ends(Protocol):
    """What is asked of Kafka, as `tutti_connect.kafka.source.consumer.KafkaSource` answers it."""

    def topics(self) -> dict[str, Source]:
        """Ids of the topics."""

    def ends(self, topic: str) -> dict[int, int]:
        """End offset of each partition."""

    def noted(self, keys: Iterable[Key]) -> dict[Key, tuple[int, str]]:
        """Offset and note of the group."""


class Topic(NamedTuple):
    """A topic to start: the connector's name, the topic in Kafka, and the topic in the log."""

    connector: str
    source: Source
    target: str

    @property
    def start_producer(self) -> str:
        """Its progress says that the topic has started."""
        return producer_name(self.connector, self.source.topic, "start")

    def place(self, offset: int) -> bytes:
        """The progress of a partition's producer."""
        return Place(self.source.cluster, self.source.topic_id, offset).encode()


def resolve_latest(
    topic: Topic, kafka: Ends, commit: Committer, check_topics: Callable[[Mapping[str, Source]], None], for_each: ForEach
) -> None:
    """Commit where each partition starts, unless the topic has started before.

    Raises:
        ConfigError: the topic started in another Kafka; or `check_topics`, called after Kafka has named the ends, refuses.
        TuttiError: Kafka or the gateways do not answer. What is committed so far counts when this is called again.
    """
    if _has_started(topic, commit):
        return
    name = topic.source.topic
    ends = kafka.ends(name)
    noted = kafka.noted([(name, number) for number in ends])  # where an earlier release has kept the start
    check_topics(kafka.topics())

    def start(number: int) -> None:
        offset, note = noted[name, number]
        known = offset >= 0 and topic_of_note(note) in ("", topic.source.topic_id)
        place = topic.place(offset if known else ends[number])
        commit(producer_name(topic.connector, name, number), topic.target, lambda progress: b"" if progress else place)

    for_each(start, ends)
    started = topic.place(len(ends))
    commit(topic.start_producer, topic.target, lambda progress: b"" if progress else started)
    LOG.info("%s: topic %s starts at latest: %s", topic.connector, name, ", ".join(f"[{n}] {end}" for n, end in ends.items()))


def _has_started(topic: Topic, commit: Committer) -> bool:
    """Whether the log says so; the topic may be a later one of that name, all of which came since.

    Raises:
        ConfigError: it was in another Kafka.
    """
    found = b""

    def look(progress: bytes) -> bytes:
        nonlocal found
        found = progress
        return b""

    producer = topic.start_producer
    commit(producer, topic.target, look)
    if not found:
        return False
    place = Place.decode(found, producer)
    check_same(place, Place(topic.source.cluster, place.topic, 0), producer, topic.source.topic)
    return True
