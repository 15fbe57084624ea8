"""Where a partition of Kafka has got to, as the progress of its producer says it in the log."""

from __future__ import annotations

import hashlib
from typing import Literal

from tutti.data.names import NAME_BYTES_MAX
from tutti.errors import ConfigError
from tutti_connect.progress import JsonProgress

_DIGEST_CHARACTERS = 16


class Place(JsonProgress, frozen=True):
    """The next offset to take, and of which topic of which Kafka: a topic that was made anew begins at 0 again.

    Attributes:
        cluster: Kafka's id of itself.
        topic: Kafka's id of the topic.
        next: offset of the partition; all records below it are in the log, or in quarantine.
    """

    cluster: str
    topic: str
    next: int


def note_of(place: Place) -> str:
    """What is noted in Kafka's group beside an offset: from the log's place up to that offset there is no record.

    It holds for this topic and for this place alone: who finds another one in the log finds nothing said. A place of -1: the log
    has no place.
    """
    return f"{place.topic}:{place.next}"


def topic_of_note(note: str) -> str:
    """The id of the topic that a note is about; empty in a note that an earlier release left of a partition without a place."""
    return note.rpartition(":")[0]


def producer_name(connector: str, topic: str, partition: int | Literal["start"]) -> str:
    """The name of the producer that brings in a partition, or says that the topic has started; of a very long topic, its beginning
    and a digest.
    """
    name = f"{connector}.{topic}.{partition}"
    if len(name) <= NAME_BYTES_MAX:
        return name
    digest = hashlib.sha256(topic.encode()).hexdigest()[:_DIGEST_CHARACTERS]
    room = NAME_BYTES_MAX - len(f"{connector}..{digest}.{partition}")
    return f"{connector}.{topic[:room]}.{digest}.{partition}"


def check_same(place: Place, now: Place, producer: str, source: str) -> None:
    """Refuse to go on behind what came from elsewhere.

    Raises:
        ConfigError: Kafka, or the topic, is another one than that which the log has records of.
    """
    if place.cluster != now.cluster:
        wrong = f"the Kafka with the id {place.cluster}, and this one is {now.cluster}"
    elif place.topic != now.topic:
        wrong = f"a topic with the id {place.topic}, and this one, {now.topic}, was made since"
    else:
        return
    raise ConfigError(
        f"{source}: the log has its records up to {place.next} from {wrong}. To take in this one from its beginning, give the "
        f'connector another `name` (with start = "earliest"), or have the log forget the old one: tutti producers forget {producer}'
    )
