"""Publisher of committed records to ZeroMQ subscribers, in total order."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator
from datetime import datetime
from typing import TYPE_CHECKING, Any

import orjson
import pyarrow as pa
import zmq

from tutti.errors import OffsetOutOfRange, Unavailable
from tutti.reader import Reader
from tutti.sources.query_progress import QueryProgress
from tutti_connect.quarantine import as_base64
from tutti_connect.zeromq import limits
from tutti_connect.zeromq.sockets import Socket, open_socket

if TYPE_CHECKING:
    from tutti_connect.zeromq.config import SinkConfig

LOG = logging.getLogger("tutti.zeromq")
_COLUMNS = ["offset", "topic", "key", "value", "timestamp", "headers"]


class Publisher:
    """Publishes the log. One thread calls `run`; other threads may read the counters.

    Attributes:
        records: number of records that this instance has published, with or without subscribers.
        failures: number of failed requests to gateways, and of restarts of the reader.
        position: offset after the last published record.
        subscriptions: number of prefixes with at least one subscriber.
    """

    def __init__(self, config: SinkConfig) -> None:
        """Prepare without connecting."""
        self.config = config
        self.records = self.failures = self.position = 0
        self.subscriptions = 0
        self.ready_fields: dict[str, object] = {}
        self._since = 0  # `_previous` has the topic of every record from this offset on
        self._previous: dict[str, int] = {}
        self._saved = -1
        self._save_at = 0.0

    def run(self, stop: threading.Event, ready: Callable[[], None]) -> None:
        """Run until `stop` is set, or until an error that a retry cannot resolve.

        Raises:
            ConfigError: an endpoint or a key is invalid.
            Unavailable: no gateway answers at the start.
            OffsetOutOfRange: retention has deleted unpublished records.
            Refused: another instance of the same name has committed a higher offset.
        """
        target = self.config.zeromq
        if self.config.start == "latest":
            self._resolve_latest(stop)
            if stop.is_set():
                return
        reader = self._reader(None)
        try:
            mark, linger = target.high_water_mark, limits.LINGER_MS
            with open_socket(zmq.XPUB, target.bind, target.connect, self.config.curve, mark, linger) as (socket, addresses):
                if target.slow == "wait":
                    socket.set(zmq.XPUB_NODROP, 1)
                self.ready_fields["bound"] = addresses
                ready()
                while not stop.is_set():
                    self._read_subscriptions(socket, 0)
                    if target.nobody == "wait" and not self.subscriptions:
                        self._save(reader)
                        self._read_subscriptions(socket, int(limits.POLL_S * 1000))
                        continue
                    try:
                        batch = reader.poll(limits.POLL_S)
                    except OffsetOutOfRange as error:
                        reader.close()
                        reader = self._reader_after_loss(error)
                        continue
                    except Unavailable as error:
                        self.failures += 1
                        LOG.warning("%s: %s: retrying", self.config.name, error)
                        continue
                    if batch is not None and not self._publish(socket, batch, stop):
                        return  # do not save the reader's offset, which is after the batch: a restart must repeat the batch
                    self._save(reader, at_once=batch is None)
                self._save(reader, at_once=True)
        finally:
            reader.close()

    def _resolve_latest(self, stop: threading.Event) -> None:
        """Commit the end of the log as the reader's offset, unless the log already has an offset of this reader.

        The commit ensures that a restart before the first published record does not skip records. If the group is not founded yet,
        wait for its log, and commit the start of the log.

        Raises:
            Unavailable: no gateway answers.
        """
        with QueryProgress(self.config.gateways) as progress:
            waited = False
            while not (frontier := progress.frontier()).log:
                if not waited:
                    LOG.info("%s: waiting for the log to start", self.config.name)
                waited = True
                if stop.wait(limits.START_POLL_S):
                    return
            if self.config.name not in progress.readers():
                # Start at the beginning of a log that is younger than this instance, because all its records are new.
                progress.save_offset(self.config.name, frontier.start if waited else frontier.offset)

    def _reader(self, start: str | None) -> Reader:
        config = self.config
        try:
            reader = Reader(
                config.gateways,
                topics=config.topics or None,
                start=start,
                follow=True,
                columns=_COLUMNS,
                name=config.name,
                patience=limits.READER_PATIENCE_S,
            )
        except OffsetOutOfRange as error:
            return self._reader_after_loss(error)
        self.position = self._since = int(reader.position)
        self._previous.clear()
        return reader

    def _reader_after_loss(self, error: OffsetOutOfRange) -> Reader:
        """Open a reader that continues after the deleted records; raise the error again if `lost` is "fail"."""
        if self.config.lost == "fail":
            raise OffsetOutOfRange(
                f'{error}. To publish the remaining records, set lost = "skip" at the top of the file'
            ) from error
        self.failures += 1
        LOG.warning("%s: %s: continues after the deleted records", self.config.name, error)
        return self._reader("earliest")

    def _read_subscriptions(self, socket: Socket, wait_ms: int) -> None:
        """Read new subscriptions, at most `SUBSCRIPTIONS_A_CHECK`, so that a flood of them cannot stop publication."""
        for _ in range(limits.SUBSCRIPTIONS_A_CHECK):
            if not socket.poll(wait_ms):
                return
            first = socket.recv()[:1]
            self.subscriptions = max(0, self.subscriptions + (first == b"\1") - (first == b"\0"))
            wait_ms = 0

    def _publish(self, socket: Socket, batch: pa.RecordBatch, stop: threading.Event) -> bool:
        """Publish all records of a batch; return False if the connector stops before the end of the batch."""
        for number, (offset, message) in enumerate(self._messages(batch)):
            if number % limits.SUBSCRIPTION_CHECK_RECORDS == 0:
                self._read_subscriptions(socket, 0)
            wait_ms = 1
            while not self._try_send(socket, message):  # False while a slow subscriber's buffer is full, or nobody subscribes
                self._read_subscriptions(socket, wait_ms)
                wait_ms = min(2 * wait_ms, limits.SLOW_MS_MAX)
                if stop.is_set():
                    return False
            self.records += 1
            self.position = offset + 1
        return True

    def _try_send(self, socket: Socket, message: list[bytes]) -> bool:
        if not self.subscriptions and self.config.zeromq.nobody == "wait":
            return False
        try:
            socket.send_multipart(message, zmq.NOBLOCK)
        except zmq.Again:
            return False
        return True

    def _messages(self, batch: pa.RecordBatch) -> Iterator[tuple[int, list[bytes]]]:
        """Yield each record's offset and message: topic, key, value, and the other fields as JSON."""
        columns: list[Any] = [batch.column(name).to_pylist() for name in _COLUMNS]
        for offset, topic, key, value, stamp, headers in zip(*columns, strict=True):
            fields: dict[str, Any] = {"offset": offset, "timestamp": _time(stamp)}
            previous = self._previous.get(topic)
            if previous is None:
                fields["since"] = self._since  # the topic has no other record between this offset and the current record
            else:
                fields["previous"] = previous
            null = [name for name, data in (("key", key), ("value", value)) if data is None]
            if null:
                fields["null"] = null
            if headers:
                fields["headers"] = [[header["key"], _text(header["value"])] for header in headers]
            self._record_offset(topic, offset)
            yield offset, [topic.encode(), key or b"", value or b"", orjson.dumps(fields)]

    def _record_offset(self, topic: str, offset: int) -> None:
        """Record the last offset of a topic; above `PREVIOUS_MAX` topics, drop the one with the lowest last offset."""
        self._previous.pop(topic, None)
        self._previous[topic] = offset  # inserted again at the end, so that the dict stays sorted by offset
        if len(self._previous) > limits.PREVIOUS_MAX:
            self._since = 1 + self._previous.pop(next(iter(self._previous)))

    def _save(self, reader: Reader, *, at_once: bool = False) -> None:
        """Commit the reader's offset to the log if it has changed. Without `at_once`, commit at most once per `SAVE_S` seconds."""
        now = time.monotonic()
        position = int(reader.position)
        if position == self._saved or (now < self._save_at and not at_once):
            return
        self._save_at = now + limits.SAVE_S
        try:
            reader.save()
        except Unavailable as error:
            self.failures += 1
            LOG.warning("%s: its offset is not committed: %s", self.config.name, error)
            return
        self._saved = position


def _time(stamp: datetime) -> str:
    return stamp.isoformat(timespec="microseconds").replace("+00:00", "Z")


def _text(data: bytes | None) -> str | dict[str, str | None] | None:
    """Return UTF-8 bytes as text, and other bytes as `{"base64": ...}`, so that a subscriber can distinguish the two."""
    try:
        return None if data is None else data.decode()
    except UnicodeDecodeError:
        return {"base64": as_base64(data)}
