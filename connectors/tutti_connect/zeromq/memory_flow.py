"""Messages that are received but not committed. Each record is sent once; after a failure, it is sent again under a new epoch.

Each frame's progress is the record count of this run at the end of the frame. So after a failure, the log returns the number of
committed records, as long as this process is running. With a spool, the producer itself sends the uncommitted records again, and
records survive the end of the process (`spooled_flow.py`).
"""

from __future__ import annotations

import collections
import logging
import secrets
import threading
import time
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from tutti.batching.receipt import Receipt
from tutti.errors import BufferFull, ConfigError, Fenced, FormatError, Refused, TuttiError, UsageError
from tutti.producer import Producer
from tutti.runtime.backoff import Backoff
from tutti_connect.progress import JsonProgress
from tutti_connect.zeromq import limits

if TYPE_CHECKING:
    from tutti_connect.zeromq.batches import OnRejectedTopic, TopicBatch
    from tutti_connect.zeromq.config import SourceConfig

LOG = logging.getLogger("tutti.zeromq")
FATAL_ERRORS = (ConfigError, Fenced, FormatError, UsageError)


class RunProgress(JsonProgress, frozen=True):
    """Number of committed records of a run of the connector."""

    run: str
    count: int


class _InFlight(NamedTuple):
    """Records in flight, and the record count of the run at their end."""

    part: TopicBatch
    end: int


class Flow:
    """Flow through a buffer in memory. One thread uses it; outcomes arrive in the producer's thread.

    Attributes:
        records: records committed by this instance.
        failures: number of restarts of the producer.
    """

    def __init__(self, config: SourceConfig, on_rejected_topic: OnRejectedTopic) -> None:
        """Prepare without connecting."""
        self._config = config
        self._on_rejected_topic = on_rejected_topic
        # topic -> reason, until the log returns which records of the topic are committed
        self._rejected_topics: dict[str, str] = {}
        self._removed = 0  # number of received records of rejected topics
        self._run = secrets.token_hex(8)
        self._buffer: collections.deque[_InFlight] = collections.deque()
        self._buffer_bytes = 0
        self._received = 0
        self._sent = 0  # number of buffered parts that are sent; these are the first parts in the buffer
        self._producer: Producer | None = None
        self._outcomes: collections.deque[tuple[Producer, TuttiError | None, int]] = collections.deque()
        self._pool = ThreadPoolExecutor(1, "opener")
        self._opening: Future[tuple[Producer, int]] | None = None
        self._retry_at = 0.0
        self._backoff = Backoff(limits.RETRY_S_MIN, limits.RETRY_S_MAX)
        self._last_error = ""
        self._outcome_event = threading.Event()
        self.records = self.failures = 0

    @property
    def flowing(self) -> bool:
        """True if the flow has a producer; otherwise it waits to open one."""
        return self._producer is not None

    @property
    def waiting(self) -> int:
        """Return the number of records that are received but not committed."""
        return self._received - self._removed - self.records

    @property
    def has_space(self) -> bool:
        """True if the buffer has free space."""
        return self._buffer_bytes < limits.BUFFER_BYTES

    def open(self) -> None:
        """Connect for the first time.

        Raises:
            TuttiError: no gateway opens the producer.
        """
        self._producer, _ = self._open_producer()

    def add(self, parts: list[TopicBatch]) -> None:
        """Add records to the buffer."""
        for part in parts:
            self._received += part.records.num_rows
            self._buffer.append(_InFlight(part, self._received))
            self._buffer_bytes += part.size

    def run_once(self, now: float) -> None:
        """Process outcomes, open a producer if there is none, and send as many records as its buffer can hold.

        Raises:
            TuttiError: a retry does not help.
        """
        self._outcome_event.clear()
        try:
            self._process_outcomes()
            if self._producer is None:
                self._reopen(now)
            self._push()
        except FATAL_ERRORS:
            raise
        except TuttiError as error:
            self._fail(error, now)

    def wait(self, seconds: float) -> None:
        """Wait for an outcome, at most `seconds`."""
        self._outcome_event.wait(seconds)

    def close(self, seconds: float) -> int:
        """Deliver the buffered records within `seconds`, and return the number of records that are not known to be committed.

        Raises:
            TuttiError: a retry does not help.
        """
        deadline = time.monotonic() + seconds
        try:
            while self._buffer and time.monotonic() < deadline:
                self.run_once(time.monotonic())
                self.wait(limits.SOCKET_POLL_S)
        finally:
            if self._producer is not None:
                self._pool.submit(self._producer.close)
            self._pool.shutdown(wait=True)
        return sum(entry.part.records.num_rows for entry in self._buffer)

    def _process_outcomes(self) -> None:
        while self._outcomes:
            producer, error, end = self._outcomes.popleft()
            if producer is not self._producer:
                continue  # the new producer's progress counts this frame if it was committed
            if error is not None:
                raise error
            self._committed(end)
            self._backoff.reset()
            self._last_error = ""

    def _committed(self, end: int) -> None:
        """Release all parts up to record count `end`, because they are committed."""
        while self._buffer and self._buffer[0].end <= end:
            entry = self._buffer.popleft()
            self._buffer_bytes -= entry.part.size
            self._sent = max(0, self._sent - 1)
            self.records += entry.part.records.num_rows

    def _reopen(self, now: float) -> None:
        if self._opening is None:
            if now >= self._retry_at:
                self._opening = self._pool.submit(self._open_producer)
        elif self._opening.done():
            opening, self._opening = self._opening, None
            self._producer, end = opening.result()
            self._sent = 0
            self._committed(end)
            self._drop_rejected_topics()

    def _drop_rejected_topics(self) -> None:
        """Pass the uncommitted records of rejected topics to `on_rejected_topic`; the other topics continue."""
        for topic, reason in self._rejected_topics.items():
            parts = [entry.part for entry in self._buffer if entry.part.topic == topic]
            self._on_rejected_topic(topic, reason, parts)
            self._buffer = collections.deque(entry for entry in self._buffer if entry.part.topic != topic)
            self._buffer_bytes -= sum(part.size for part in parts)
            self._removed += sum(part.records.num_rows for part in parts)
        self._rejected_topics.clear()

    def _open_producer(self) -> tuple[Producer, int]:
        """Open a producer with a new epoch, and return it with the number of committed records of this run."""
        producer = Producer(
            self._config.gateways,
            producer=self._config.name,
            buffer_bytes=limits.BUFFER_BYTES,
            on_full="raise",
            delivery_timeout=limits.DELIVERY_S,
        )
        try:
            progress = producer.resume().progress
            committed = RunProgress.decode(progress, self._config.name) if progress else RunProgress("", 0)
        except BaseException:
            producer.close()
            raise
        return producer, committed.count if committed.run == self._run else 0

    def _push(self) -> None:
        producer = self._producer
        while producer is not None and self._sent < len(self._buffer):
            part, end = self._buffer[self._sent]
            try:
                progress = RunProgress(self._run, end).encode()
                receipt = producer.send_batch(part.topic, part.records, progress, partial(self.on_delivery, producer, end))
            except BufferFull:
                return
            if receipt.done() and receipt.error is not None:
                raise receipt.error  # stop here, because the progress of a later frame would also cover this frame
            self._sent += 1

    def _fail(self, error: TuttiError, now: float) -> None:
        self.failures += 1
        if isinstance(error, Refused) and error.topic and not self._config.topic:
            # peers choose the topics, so a rejected topic must not block the others
            self._rejected_topics[error.topic] = str(error)
            self._retry_at = now
        else:
            self._retry_at = now + self._backoff.next_s()
            message = f"{type(error).__name__}: {error}"
            if message != self._last_error:
                LOG.warning("%s: restarts after the last committed record: %s", self._config.name, message)
            self._last_error = message
        old, self._producer = self._producer, None
        if old is not None:
            self._pool.submit(old.close)

    def on_delivery(self, producer: Producer, end: int, error: TuttiError | None, _receipt: Receipt) -> None:
        """Receive the outcome of one frame, in an I/O thread of the client."""
        self._outcomes.append((producer, error, end))
        self._outcome_event.set()
