"""Flow through a producer with a spool on disk: records survive a crash of this process and an outage of the gateways."""

from __future__ import annotations

import collections
import logging
import threading
import time
from functools import partial
from typing import TYPE_CHECKING

from tutti.errors import BufferFull, Refused, TooLarge, TuttiError
from tutti.producer import Producer
from tutti_connect.zeromq import limits

if TYPE_CHECKING:
    from tutti.batching.receipt import Receipt
    from tutti_connect.zeromq.batches import OnRejectedTopic, TopicBatch
    from tutti_connect.zeromq.config import SourceConfig

LOG = logging.getLogger("tutti.zeromq")


class _NamedTopics(Producer):
    """A producer that moves records for a topic without permission to the folder `refused`, so that other topics continue."""

    dead_letters_denied = True


class SpooledFlow:
    """Variant of `Flow` that keeps records on disk. After a failure, the spool stays as it is until an operator restarts the
    connector.

    The first records of each topic have a delivery callback, which reports if the log rejects the topic. Records of a rejected
    topic that are in the spool go to its folder `refused`; later messages of the topic go to quarantine.
    """

    failures = 0

    def __init__(self, config: SourceConfig, on_rejected_topic: OnRejectedTopic) -> None:
        """Prepare without opening the spool."""
        self._config = config
        self._on_rejected_topic = on_rejected_topic
        # topics whose first records were sent with a delivery callback, and that are not rejected
        self._known_topics: set[str] = set()
        self._outcomes: collections.deque[tuple[str, TuttiError | None]] = collections.deque()
        self._buffer: collections.deque[TopicBatch] = collections.deque()
        self._producer: Producer | None = None
        self._received = self._committed = 0
        self._count_lock = threading.Lock()
        self._last: Receipt | None = None

    @property
    def flowing(self) -> bool:
        """True if the flow has a producer."""
        return self._producer is not None

    @property
    def waiting(self) -> int:
        """Return the number of uncommitted records, including those of earlier runs. Any thread may call this.

        The method counts the buffer before the producer, because a part may move to the producer during the call: it may be counted
        twice, but is never missed.
        """
        buffered = sum(part.records.num_rows for part in list(self._buffer))
        return buffered + (len(self._producer) if self._producer is not None else 0)

    @property
    def spooled(self) -> int:
        """Return the number of uncommitted records that are on disk."""
        return self._producer.spool.records if self._producer is not None else 0

    @property
    def records(self) -> int:
        """Return the number of records that this instance has received and committed. The number never decreases."""
        with self._count_lock:
            self._committed = max(self._committed, self._received - self.waiting)
            return self._committed

    @property
    def has_space(self) -> bool:
        """True if no part waits for the producer."""
        return not self._buffer

    def open(self) -> None:
        """Open the spool, which is possible without a gateway.

        Raises:
            TuttiError: the spool belongs to another producer, is corrupt, or is in use by another process.
        """
        config = self._config
        self._producer = (Producer if config.topic else _NamedTopics)(
            config.gateways,
            producer=config.name,
            buffer_bytes=limits.BUFFER_BYTES,
            on_full="raise",
            delivery_timeout=limits.DELIVERY_S,
            spool=config.spool,
        )
        earlier = self._producer.spool.earlier
        if earlier:
            LOG.info("%s: the spool has %d records of earlier runs, which are sent first", config.name, earlier)

    def add(self, parts: list[TopicBatch]) -> None:
        """Add records to the buffer."""
        # Extend the buffer first: a received record that is neither in the buffer nor in the producer counts as committed.
        self._buffer.extend(parts)
        self._received += sum(part.records.num_rows for part in parts)

    def run_once(self, _now: float) -> None:
        """Pass buffered records to the producer until its buffer is full.

        Raises:
            TuttiError: the error that ended the producer.
        """
        self._process_outcomes()
        while self._buffer and self._producer is not None:
            part = self._buffer[0]
            outcome = None if part.topic in self._known_topics else partial(self.on_delivery, part.topic)
            try:
                self._last = self._producer.send_batch(part.topic, part.records, on_delivery=outcome)
            except BufferFull:
                return
            if self._last.done() and isinstance(self._last.error, TooLarge):
                raise self._last.error  # a defect of the connector, which makes every part small enough for a frame
            self._known_topics.add(part.topic)
            self._buffer.popleft()

    def on_delivery(self, topic: str, error: TuttiError | None, _receipt: Receipt) -> None:
        """Queue the outcome of the first records of a topic for the flow's thread; the producer calls this in an I/O thread."""
        self._outcomes.append((topic, error))

    def _process_outcomes(self) -> None:
        while self._outcomes:
            topic, error = self._outcomes.popleft()
            if error is None:
                continue
            self._known_topics.discard(topic)
            if isinstance(error, Refused) and error.topic and not self._config.topic:
                parts = [part for part in self._buffer if part.topic == topic]
                self._on_rejected_topic(topic, str(error), parts)
                self._buffer = collections.deque(part for part in self._buffer if part.topic != topic)
                self._received -= sum(part.records.num_rows for part in parts)

    def wait(self, seconds: float) -> None:
        """Wait `seconds`, in which the producer can send records and so free space in its buffer."""
        time.sleep(seconds)

    def close(self, seconds: float) -> int:
        """Write the buffered records to the spool within `seconds`, counted from this call; return the number left in memory.

        Raises:
            TuttiError: the error that ended the producer.
        """
        deadline = time.monotonic() + seconds
        try:
            while self._buffer and time.monotonic() < deadline:
                self.run_once(time.monotonic())
                self.wait(limits.SOCKET_POLL_S if self._buffer else 0.0)
            if self._last is not None and not self._buffer:
                self._last.spooled(max(0.1, deadline - time.monotonic()))
        finally:
            if self._producer is not None:
                self._producer.close()
        return sum(part.records.num_rows for part in self._buffer)
