"""Position in a partition of Kafka, committed to the log as the progress of its producer."""

from __future__ import annotations

import hashlib
from typing import Literal

from tutti.data.names import NAME_BYTES_MAX
from tutti.errors import ConfigError
from tutti_connect.progress import JsonProgress

_DIGEST_CHARACTERS = 16


class KafkaPosition(JsonProgress, frozen=True):
    """The next offset to read from a partition, and the id of the topic, because the offsets of a recreated topic restart at 0.

    Attributes:
        cluster: id of the Kafka cluster.
        topic: id of the topic.
        next: offset in the partition below which all records are in the log, or in quarantine.
    """

    cluster: str
    topic: str
    next: int


def offset_metadata(position: KafkaPosition) -> str:
    """Return the metadata for a commit to Kafka's group: the topic id, and the position in the log (-1 without one).

    While the log has this position, all messages between it and the group's offset are known not to be records.
    """
    return f"{position.topic}:{position.next}"


def metadata_topic(metadata: str) -> str:
    """Return the topic id in the metadata of a group offset; "" if an earlier release wrote metadata without a position."""
    return metadata.rpartition(":")[0]


def producer_name(connector: str, topic: str, partition: int | Literal["start"]) -> str:
    """Return the name of a partition's producer, or of the producer that marks the topic as started.

    A very long topic name is replaced by its first characters and a digest.
    """
    name = f"{connector}.{topic}.{partition}"
    if len(name) <= NAME_BYTES_MAX:
        return name
    digest = hashlib.sha256(topic.encode()).hexdigest()[:_DIGEST_CHARACTERS]
    length_max = NAME_BYTES_MAX - len(f"{connector}..{digest}.{partition}")
    return f"{connector}.{topic[:length_max]}.{digest}.{partition}"


def check_same(position: KafkaPosition, current: KafkaPosition, producer: str, source: str) -> None:
    """Reject a position from another cluster or topic.

    Raises:
        ConfigError: the log has the records of another cluster, or of another topic with this name.
    """
    if position.cluster != current.cluster:
        wrong = f"the Kafka cluster with id {position.cluster}, but this cluster has id {current.cluster}"
    elif position.topic != current.topic:
        wrong = f"a topic with id {position.topic}, but the topic with id {current.topic} was created later"
    else:
        return
    raise ConfigError(
        f"{source}: the records in the log, up to offset {position.next}, are from {wrong}. To copy this topic from its "
        f'beginning, give the connector another `name` (with start = "earliest"), or delete the state of the old producer: '
        f"tutti producers forget {producer}"
    )
