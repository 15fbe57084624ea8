"""From Kafka's messages to batches of records, column by column; and which of them no log takes."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import numpy as np
import pyarrow as pa

from connectors.kafka import limits
from connectors.quarantine import as_base64

if TYPE_CHECKING:
    from confluent_kafka import Message

_TIME = pa.timestamp("us", tz="UTC")
_HEADERS = pa.list_(pa.struct([pa.field("key", pa.string(), nullable=False), pa.field("value", pa.binary())]))
_TIME_MS_MAX = 253_402_300_799_999  # the end of the year 9999


class Source(NamedTuple):
    """Where records come from: Kafka's id, that of the topic, and its name."""

    cluster: str
    topic_id: str
    topic: str


class Poison(NamedTuple):
    """A message that no log takes, and why."""

    message: Message
    reason: str

    @property
    def place(self) -> str:
        """Where it is in its topic: partition and offset."""
        return f"{self.message.partition()}-{self.message.offset()}"

    def told(self, source: Source) -> dict[str, Any]:
        """All there is of it, for quarantine."""
        message = self.message
        try:
            headers = [[name, as_base64(value)] for name, value in headers_of(message)]
        except UnicodeDecodeError:
            headers = None  # no client of Python reads them
        return {
            "cluster": source.cluster,
            "topic": source.topic,
            "topic_id": source.topic_id,
            "partition": message.partition(),
            "offset": message.offset(),
            "timestamp_ms": message.timestamp()[1],
            "key_base64": as_base64(message.key()),
            "value_base64": as_base64(message.value()),
            "headers": headers,
        }


class Cut(NamedTuple):
    """Records for one frame.

    `records`: columns key, value, timestamp and headers. `next`: the offset behind the last of them.
    """

    records: pa.RecordBatch
    next: int


def sorted_out(messages: Sequence[Message]) -> tuple[list[Message], list[Poison]]:
    """The messages that can be records, and those that cannot."""
    good, bad = [], []
    for message in messages:
        reason = _reason(message)
        if reason:
            bad.append(Poison(message, reason))
        else:
            good.append(message)
    return good, bad


def _reason(message: Message) -> str:
    try:
        size = _size(message)
    except UnicodeDecodeError as error:
        return f"the name of a header is not UTF-8 ({error.reason} at byte {error.start})"
    if size > limits.RECORD_BYTES_MAX:
        return f"key, value and headers take {size} bytes; a record has at most {limits.RECORD_BYTES_MAX}"
    kind, time_ms = message.timestamp()
    if kind and not 0 <= time_ms <= _TIME_MS_MAX:
        return f"its timestamp is {time_ms} ms since 1970, which is outside of 1970 to 9999"
    return ""


def _size(message: Message) -> int:
    """Bytes of key, value and headers; what columns take for a header beside its bytes is counted too."""
    size = len(message.value() or b"") + len(message.key() or b"")
    for name, value in headers_of(message):
        size += len(name.encode()) + len(value or b"") + limits.HEADER_OVERHEAD_BYTES
    return size


def cuts(messages: Sequence[Message]) -> Iterator[Cut]:
    """Good messages of one partition, in its order, as records for as many frames as they need."""
    if not messages:
        return
    records = pa.RecordBatch.from_arrays(
        [
            pa.array([message.key() for message in messages], pa.binary()),
            pa.array([message.value() for message in messages], pa.binary()),
            _times(messages),
            _headers(messages),
        ],
        names=["key", "value", "timestamp", "headers"],
    )
    ends = np.cumsum(np.fromiter(map(_size, messages), np.int64, len(messages)) + limits.RECORD_OVERHEAD_BYTES)
    start, done = 0, 0
    while start < len(messages):
        end = max(int(np.searchsorted(ends, done + limits.FRAME_BYTES, "right")), start + 1)
        yield Cut(records.slice(start, end - start), offset_of(messages[end - 1]) + 1)
        start, done = end, int(ends[end - 1])


def offset_of(message: Message) -> int:
    """Its offset; every message that came from a broker has one."""
    offset = message.offset()
    return -1 if offset is None else offset


def headers_of(message: Message) -> list[tuple[str, bytes | None]]:
    """Its headers; none and no list of them are the same."""
    return cast("list[tuple[str, bytes | None]]", message.headers() or [])


def _times(messages: Sequence[Message]) -> pa.Array[Any]:
    now_ms = time.time_ns() // 1_000_000
    stamps = (message.timestamp() for message in messages)
    millis = np.fromiter((stamp[1] if stamp[0] else now_ms for stamp in stamps), np.int64, len(messages))
    return pa.array(millis * 1000).cast(_TIME)


def _headers(messages: Sequence[Message]) -> pa.Array[Any]:
    all_of = [headers_of(message) for message in messages]
    if not any(all_of):
        return pa.nulls(len(all_of), _HEADERS)
    return pa.array([None if not pairs else [{"key": k, "value": v} for k, v in pairs] for pairs in all_of], _HEADERS)
