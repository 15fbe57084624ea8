"""Conversion of ZeroMQ messages to record batches, one topic in each, and detection of messages that the log rejects."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pyarrow as pa

from tutti.data.frames.schema import TIMESTAMP
from tutti.data.names import NAME_BYTES_MAX, is_name
from tutti_connect.zeromq import limits

if TYPE_CHECKING:
    from tutti_connect.zeromq.config import Role

Message = list[bytes]
_BINARY = pa.binary()


class RejectedMessage(NamedTuple):
    """A message that the log rejects, and the reason."""

    message: Message
    reason: str


class TopicBatch(NamedTuple):
    """Records of one topic for one frame; `size` is their approximate size in bytes."""

    topic: str
    records: pa.RecordBatch
    size: int


#: Callback for a topic that the log rejects: (topic, reason, buffered records of the topic, which the log will not get).
OnRejectedTopic = Callable[[str, str, Sequence[TopicBatch]], None]


class _Column:
    """Columns of the records of one topic, while messages are converted."""

    __slots__ = ("keys", "sizes", "values")

    def __init__(self) -> None:
        self.keys: list[bytes | None] = []
        self.values: list[bytes] = []
        self.sizes: list[int] = []


class MessageConverter:
    """Converts messages to records: maps their frames to topic, key and value, and rejects messages of rejected topics."""

    def __init__(self, frames: Sequence[Role], topic: str) -> None:
        """Convert messages whose frames have these roles; `topic` is used if no frame has the role "topic"."""
        self._frames = tuple(frames)
        self._count = len(frames)
        self._topic_at, self._key_at, self._value_at = (
            frames.index(role) if role in frames else -1 for role in ("topic", "key", "value")
        )
        self._fixed = topic
        self._topics: dict[bytes, str] = {}
        self._rejected_topics: dict[bytes, str] = {}  # topic -> reason

    def reject_topic(self, topic: str, reason: str) -> None:
        """Reject all further messages of a topic, with this reason."""
        self._topics.pop(topic.encode(), None)
        self._rejected_topics[topic.encode()] = reason

    def original_messages(self, part: TopicBatch) -> Iterator[Message]:
        """Yield the messages from which records were made; frames with the role "skip" are empty, because records lack them."""
        for row in part.records.to_pylist():
            yield [part.topic.encode() if role == "topic" else row.get(role) or b"" for role in self._frames]

    def to_batches(self, messages: Sequence[Message]) -> tuple[list[TopicBatch], list[RejectedMessage]]:
        """Convert messages; return the records by topic, in order of arrival and with the current time, and rejected messages."""
        columns: dict[str, _Column] = {}
        rejected: list[RejectedMessage] = []
        for message in messages:
            try:
                topic, key, value = self._record(message)
            except ValueError as error:
                rejected.append(RejectedMessage(message, str(error)))
                continue
            column = columns.get(topic)
            if column is None:
                column = columns[topic] = _Column()
            column.keys.append(key)
            column.values.append(value)
            column.sizes.append(len(value) + (len(key) if key else 0) + limits.RECORD_OVERHEAD_BYTES)
        now_us = time.time_ns() // 1000
        return [part for topic, column in columns.items() for part in _split(topic, column, now_us)], rejected

    def _record(self, message: Message) -> tuple[str, bytes | None, bytes]:
        if len(message) != self._count:
            raise ValueError(f"it has {len(message)} frames, but zeromq.frames names {self._count}")
        value = message[self._value_at]
        key = message[self._key_at] if self._key_at >= 0 else None
        size = len(value) + (len(key) if key else 0)
        if size > limits.RECORD_BYTES_MAX:
            raise ValueError(f"key and value take {size} bytes; the limit of a record is {limits.RECORD_BYTES_MAX}")
        if self._topic_at < 0:
            return self._fixed, key, value
        topic = self._topics.get(message[self._topic_at])
        return topic or self._new_topic(message[self._topic_at]), key, value

    def _new_topic(self, name: bytes) -> str:
        if name in self._rejected_topics:
            raise ValueError(self._rejected_topics[name])
        text = name[: NAME_BYTES_MAX + 1].decode("ascii", "replace")
        if not is_name(text):
            raise ValueError(f"its topic is {text[:60]!r}: a topic has 1 to {NAME_BYTES_MAX} letters, digits, '.', '_' and '-'")
        if len(self._topics) + len(self._rejected_topics) >= limits.TOPICS_MAX:
            raise ValueError(f"its topic {text!r} exceeds the limit of {limits.TOPICS_MAX} topics")
        self._topics[name] = text
        return text


def _split(topic: str, column: _Column, now_us: int) -> Iterator[TopicBatch]:
    count = len(column.values)
    records = pa.RecordBatch.from_arrays(
        [_bytes(column.keys), _bytes(column.values), pa.array(np.full(count, now_us, np.int64)).cast(TIMESTAMP)],
        names=["key", "value", "timestamp"],
    )
    ends = np.cumsum(np.array(column.sizes, np.int64))
    start, done = 0, 0
    while start < count:
        end = max(int(np.searchsorted(ends, done + limits.FRAME_BYTES, "right")), start + 1)
        yield TopicBatch(topic, records.slice(start, end - start), int(ends[end - 1]) - done)
        start, done = end, int(ends[end - 1])


def _bytes(values: Sequence[bytes | None]) -> pa.Array[Any]:
    return pa.array(values, _BINARY)
