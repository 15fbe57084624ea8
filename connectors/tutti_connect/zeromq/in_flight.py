"""Messages that are taken but not committed: each record is sent once, and resent after a failure under a new epoch.

Each frame's progress is the record count of this run at its end. After a failure, the log therefore returns the number of committed
records, as long as this process runs. With a spool, the producer does this, and records survive the process (`spooled.py`).
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
    from tutti_connect.zeromq.batches import OnRefused, TopicBatch
    from tutti_connect.zeromq.config import Inflow

LOG = logging.getLogger("tutti.zeromq")
FINAL = (ConfigError, Fenced, FormatError, UsageError)


class RunProgress(JsonProgress, frozen=True):
    """Number of committed records of a run of the connector."""

    run: str
    count: int


class _InFlight(NamedTuple):
    """Records in flight, and the record count of the run at their end."""

    part: TopicBatch
    end: int


class Flow:
    """In-memory flow. One thread uses it; outcomes arrive in the producer's thread.

    Attributes:
        records: records committed by this instance.
        failures: number of restarts of the producer.
    """

    def __init__(self, config: Inflow, on_refused: OnRefused) -> None:
        """Prepare; open no connection yet."""
        self._config = config
        self._on_refused = on_refused
        self._refused: dict[str, str] = {}  # topic -> reason, until the log returns which of its records are committed
        self._removed = 0  # number of taken records of refused topics
        self._run = secrets.token_hex(8)
        self._held: collections.deque[_InFlight] = collections.deque()
        self._held_bytes = 0
        self._taken = 0
        self._sent = 0  # number of held parts that are sent
        self._producer: Producer | None = None
        self._outcomes: collections.deque[tuple[Producer, TuttiError | None, int]] = collections.deque()
        self._pool = ThreadPoolExecutor(1, "opener")
        self._opening: Future[tuple[Producer, int]] | None = None
        self._retry_at = 0.0
        self._waits = Backoff(limits.RETRY_S_MIN, limits.RETRY_S_MAX)
        self._trouble = ""
        self._outcome_event = threading.Event()
        self.records = self.failures = 0

    @property
    def flowing(self) -> bool:
        """True if the flow has a producer; otherwise it waits to open one."""
        return self._producer is not None

    @property
    def waiting(self) -> int:
        """Return the number of records that are taken but not committed."""
        return self._taken - self._removed - self.records

    @property
    def room(self) -> bool:
        """True if the buffer has free space."""
        return self._held_bytes < limits.HELD_BYTES_MAX

    def open(self) -> None:
        """Connect for the first time.

        Raises:
            TuttiError: no gateway opens the producer.
        """
        self._producer, _ = self._open_producer()

    def add(self, parts: list[TopicBatch]) -> None:
        """Add records to the buffer."""
        for part in parts:
            self._taken += part.records.num_rows
            self._held.append(_InFlight(part, self._taken))
            self._held_bytes += part.size

    def tend(self, now: float) -> None:
        """Process outcomes, open a producer if there is none, and send as much as its buffer takes.

        Raises:
            TuttiError: a retry does not help.
        """
        self._outcome_event.clear()
        try:
            self._process_outcomes()
            if self._producer is None:
                self._reopen(now)
            self._push()
        except FINAL:
            raise
        except TuttiError as error:
            self._fail(error, now)

    def wait(self, seconds: float) -> None:
        """Wait for an outcome, at most `seconds`."""
        self._outcome_event.wait(seconds)

    def close(self, seconds: float) -> int:
        """Deliver the held records within `seconds`, and return the number of records that are not known to be committed.

        Raises:
            TuttiError: a retry does not help.
        """
        deadline = time.monotonic() + seconds
        try:
            while self._held and time.monotonic() < deadline:
                self.tend(time.monotonic())
                self.wait(limits.TURN_S)
        finally:
            if self._producer is not None:
                self._pool.submit(self._producer.close)
            self._pool.shutdown(wait=True)
        return sum(held.part.records.num_rows for held in self._held)

    def _process_outcomes(self) -> None:
        while self._outcomes:
            producer, error, end = self._outcomes.popleft()
            if producer is not self._producer:
                continue
            if error is not None:
                raise error
            self._committed(end)
            self._waits.reset()
            self._trouble = ""

    def _committed(self, end: int) -> None:
        """Release all parts up to record count `end`, which are committed."""
        while self._held and self._held[0].end <= end:
            held = self._held.popleft()
            self._held_bytes -= held.part.size
            self._sent = max(0, self._sent - 1)
            self.records += held.part.records.num_rows

    def _reopen(self, now: float) -> None:
        if self._opening is None:
            if now >= self._retry_at:
                self._opening = self._pool.submit(self._open_producer)
        elif self._opening.done():
            opening, self._opening = self._opening, None
            self._producer, end = opening.result()
            self._sent = 0
            self._committed(end)
            self._remove_refused()

    def _remove_refused(self) -> None:
        """Give up the uncommitted records of refused topics; the other topics continue."""
        for topic, reason in self._refused.items():
            parts = [held.part for held in self._held if held.part.topic == topic]
            self._on_refused(topic, reason, parts)
            self._held = collections.deque(held for held in self._held if held.part.topic != topic)
            self._held_bytes -= sum(part.size for part in parts)
            self._removed += sum(part.records.num_rows for part in parts)
        self._refused.clear()

    def _open_producer(self) -> tuple[Producer, int]:
        """Open a producer with a new epoch, and return it with the number of committed records of this run."""
        producer = Producer(
            self._config.gateways,
            producer=self._config.name,
            buffer_bytes=limits.HELD_BYTES_MAX,
            on_full="raise",
            delivery_timeout=limits.DELIVERY_S,
        )
        try:
            progress = producer.resume().progress
            mark = RunProgress.decode(progress, self._config.name) if progress else RunProgress("", 0)
        except BaseException:
            producer.close()
            raise
        return producer, mark.count if mark.run == self._run else 0

    def _push(self) -> None:
        producer = self._producer
        while producer is not None and self._sent < len(self._held):
            part, end = self._held[self._sent]
            try:
                progress = RunProgress(self._run, end).encode()
                receipt = producer.send_batch(part.topic, part.records, progress, partial(self.heard, producer, end))
            except BufferFull:
                return
            if receipt.done() and receipt.error is not None:
                raise receipt.error  # stop before sending frames whose progress would include this one
            self._sent += 1

    def _fail(self, error: TuttiError, now: float) -> None:
        self.failures += 1
        if isinstance(error, Refused) and error.topic and not self._config.topic:
            self._refused[error.topic] = str(error)  # messages name the topics: a refused one must not block the others
            self._retry_at = now
        else:
            self._retry_at = now + self._waits.next_s()
            trouble = f"{type(error).__name__}: {error}"
            if trouble != self._trouble:
                LOG.warning("%s: restarts after the last committed record: %s", self._config.name, trouble)
            self._trouble = trouble
        old, self._producer = self._producer, None
        if old is not None:
            self._pool.submit(old.close)

    def heard(self, producer: Producer, end: int, error: TuttiError | None, _receipt: Receipt) -> None:
        """Receive the outcome of one frame, in an I/O thread of the client."""
        self._outcomes.append((producer, error, end))
        self._outcome_event.set()
