"""Flow through a buffer in memory: keeps received messages until they are committed, and sends them again after a failure.

The progress of each frame is the number of records that this process has received up to the end of the frame. After a failure, a
new producer reads this number from the log, so that the flow sends only the other records again. A crash of the process loses the
records in the buffer. With a spool, records survive a crash, and the producer itself sends them again (`spooled_flow.py`).
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
    """Number of committed records of one run (process) of the connector, with the random id of this run."""

    run: str
    count: int


class _InFlight(NamedTuple):
    """Buffered records. `end` is the number of records that this run had received up to the last of these."""

    part: TopicBatch
    end: int


class Flow:
    """Flow through a buffer in memory. An I/O thread of the producer calls `on_delivery`; one other thread calls all other methods.

    Attributes:
        records: number of records that this instance has committed.
        failures: number of restarts of the producer.
    """

    def __init__(self, config: SourceConfig, on_rejected_topic: OnRejectedTopic) -> None:
        """Prepare without connecting."""
        self._config = config
        self._on_rejected_topic = on_rejected_topic
        # rejected topic -> reason; its uncommitted records go to quarantine when a new producer has found which these are
        self._rejected_topics: dict[str, str] = {}
        self._removed = 0  # number of records that left the buffer to quarantine
        self._run = secrets.token_hex(8)
        self._buffer: collections.deque[_InFlight] = collections.deque()
        self._buffer_bytes = 0
        self._received = 0
        self._sent = 0  # number of parts at the start of the buffer that are sent, and wait for their outcome
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
        """Process outcomes, open a producer if none is open, and pass it buffered records until the producer's buffer is full.

        Raises:
            TuttiError: the flow has failed, and a retry cannot help.
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
        """Deliver the buffered records within `seconds`, counted from this call; return the number of records that might not be
        committed.

        Raises:
            TuttiError: the flow has failed, and a retry cannot help.
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
                continue  # ignore outcomes of an old producer: the new one has read from the log what is committed
            if error is not None:
                raise error
            self._committed(end)
            self._backoff.reset()
            self._last_error = ""

    def _committed(self, end: int) -> None:
        """Remove all parts up to record number `end` from the buffer, because they are committed."""
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
        """Remove the uncommitted records of rejected topics from the buffer, and pass them to `on_rejected_topic`."""
        for topic, reason in self._rejected_topics.items():
            parts = [entry.part for entry in self._buffer if entry.part.topic == topic]
            self._on_rejected_topic(topic, reason, parts)
            self._buffer = collections.deque(entry for entry in self._buffer if entry.part.topic != topic)
            self._buffer_bytes -= sum(part.size for part in parts)
            self._removed += sum(part.records.num_rows for part in parts)
        self._rejected_topics.clear()

    def _open_producer(self) -> tuple[Producer, int]:
        """Open a producer, which starts an epoch; return it, and the number of records of this run that are committed."""
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
                raise receipt.error  # a later frame must not be sent: its progress would count the records of this frame, too
            self._sent += 1

    def _fail(self, error: TuttiError, now: float) -> None:
        self.failures += 1
        if isinstance(error, Refused) and error.topic and not self._config.topic:
            # A rejected topic must not block the others, because any peer can send messages of any topic.
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
        """Queue the outcome of one frame for the flow's thread; the producer calls this in an I/O thread."""
        self._outcomes.append((producer, error, end))
        self._outcome_event.set()
