"""Conversion of Kafka messages to record batches, and detection of messages that the log rejects."""

from __future__ import annotations

import time
from collections.abc import Sequence
from itertools import chain
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tutti.data.frames.schema import HEADERS, TIME_US_MAX, TIME_US_MIN, TIMESTAMP
from tutti_connect.kafka import limits
from tutti_connect.quarantine import as_base64

if TYPE_CHECKING:
    from confluent_kafka import Message

Headers = list[tuple[str, bytes | None]] | None
_TIME_MS_MIN, _TIME_MS_MAX = TIME_US_MIN // 1000, TIME_US_MAX // 1000
_NO_TIME_MS = -1  # Kafka's timestamp of a message that was sent without a time


class Source(NamedTuple):
    """Source of records: Kafka's cluster id, the topic id, and the topic name."""

    cluster: str
    topic_id: str
    topic: str


class RejectedMessage(NamedTuple):
    """A message that the log rejects, and the reason."""

    message: Message
    reason: str

    @property
    def partition_offset(self) -> str:
        """Return the partition and offset of the message as text."""
        return f"{self.message.partition()}-{self.message.offset()}"

    def fields(self, source: Source) -> dict[str, Any]:
        """Return all fields of the message, for quarantine."""
        message = self.message
        try:
            headers = [[name, as_base64(value)] for name, value in headers_of(message)]
        except UnicodeDecodeError:
            headers = None  # Kafka's client raises for all headers if the name of one is not UTF-8
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


class FrameBatch(NamedTuple):
    """Records for one frame.

    Attributes:
        records: columns key, value, timestamp and headers.
        next: offset in the Kafka partition after the last of these records.
    """

    records: pa.RecordBatch
    next: int


def to_batches(messages: Sequence[Message]) -> tuple[list[FrameBatch], list[RejectedMessage]]:
    """Convert consecutive messages of one partition; return the records by frame, and the messages that the log rejects.

    The conversion passes unbound methods to `map`, because a Python call for each field of each message would take most of the
    time.
    """
    kind = type(messages[0])
    headers, unreadable = _headers_of(messages)
    kinds, times = np.fromiter(chain.from_iterable(map(kind.timestamp, messages)), np.int64, 2 * len(messages)).reshape(-1, 2).T
    millis = np.where((kinds == 0) | (times == _NO_TIME_MS), time.time_ns() // 1_000_000, times)
    keys: Any = pa.array(list(map(kind.key, messages)), pa.binary())
    values: Any = pa.array(list(map(kind.value, messages)), pa.binary())
    sizes = pc.binary_length(keys).fill_null(0).to_numpy().astype(np.int64) + pc.binary_length(values).fill_null(0).to_numpy()
    if headers is not None:
        sizes += np.fromiter(map(_headers_size, headers), np.int64, len(messages))
    bad = (sizes > limits.RECORD_BYTES_MAX) | (millis < _TIME_MS_MIN) | (millis > _TIME_MS_MAX)
    bad[list(unreadable)] = True
    rejected = [
        RejectedMessage(messages[row], unreadable.get(row) or _reason(int(sizes[row]), int(millis[row])))
        for row in np.flatnonzero(bad).tolist()
    ]
    millis[bad] = 0
    columns = [keys, values, pa.array(millis * 1000).cast(TIMESTAMP), _headers(headers, len(messages))]
    records = pa.RecordBatch.from_arrays(columns, names=["key", "value", "timestamp", "headers"])
    if rejected:
        good = np.flatnonzero(~bad)  # an array, because an empty list would have no integer type for `take`
        return _split(records.take(good), sizes[good], [messages[row] for row in good.tolist()]), rejected
    return _split(records, sizes, messages), rejected


def _reason(size: int, time_ms: int) -> str:
    if size > limits.RECORD_BYTES_MAX:
        return f"key, value and headers take {size} bytes; the limit of a record is {limits.RECORD_BYTES_MAX}"
    return f"its timestamp is {time_ms} ms since 1970, which is outside the years 1 to 9999"


def _split(records: pa.RecordBatch, sizes: Any, messages: Sequence[Message]) -> list[FrameBatch]:
    ends = np.cumsum(sizes + limits.RECORD_OVERHEAD_BYTES)
    batches, start, done = list[FrameBatch](), 0, 0
    while start < len(messages):
        end = max(int(np.searchsorted(ends, done + limits.FRAME_BYTES, "right")), start + 1)
        batches.append(FrameBatch(records.slice(start, end - start), offset_of(messages[end - 1]) + 1))
        start, done = end, int(ends[end - 1])
    return batches


def offset_of(message: Message) -> int:
    """Return the offset of a message. The type stubs allow None, but every message from a broker has an offset."""
    offset = message.offset()
    return -1 if offset is None else offset


def headers_of(message: Message) -> list[tuple[str, bytes | None]]:
    """Return the headers of a message, an empty list if it has none."""
    return cast("list[tuple[str, bytes | None]]", message.headers() or [])


def _headers_of(messages: Sequence[Message]) -> tuple[list[Headers] | None, dict[int, str]]:
    """Return the headers of each message (None if no message has any), and the errors of unreadable headers by message number."""
    try:
        given: Any = list(map(type(messages[0]).headers, messages))
        return (given if any(given) else None), {}
    except UnicodeDecodeError:
        pass
    read: list[Headers] = []
    unreadable = dict[int, str]()
    for row, message in enumerate(messages):
        try:
            read.append(headers_of(message))
        except UnicodeDecodeError as error:
            read.append(None)
            unreadable[row] = f"the name of a header is not UTF-8 ({error.reason} at byte {error.start})"
    return read, unreadable


def _headers_size(headers: Headers) -> int:
    """Return the bytes that headers take in a frame."""
    return sum(len(name.encode()) + len(value or b"") + limits.HEADER_OVERHEAD_BYTES for name, value in headers or ())


def _headers(given: list[Headers] | None, count: int) -> pa.Array[Any]:
    if given is None:
        return pa.nulls(count, HEADERS)
    return pa.array([None if not pairs else [{"key": k, "value": v} for k, v in pairs] for pairs in given], HEADERS)
