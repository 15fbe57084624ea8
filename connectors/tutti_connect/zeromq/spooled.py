"""What was taken, handed to a producer with a spool: it commits then, whatever becomes of this process and of the gateways."""

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
    from tutti_connect.zeromq.batches import OnRefused, Part
    from tutti_connect.zeromq.config import Inflow

LOG = logging.getLogger("tutti.zeromq")


class _NamedTopics(Producer):
    """Messages name the topics: one that the token does not allow must not hold up the others."""

    puts_denied_aside = True


class SpooledFlow:
    """As `Flow`, on a disk. What fails here is for somebody to look at: the spool stays as it is.

    The first records of each topic have a callback. It reports a topic that the log refuses: its later records go to quarantine.
    Those that were in the spool by then are in the spool's folder `refused`.
    """

    failures = 0

    def __init__(self, config: Inflow, on_refused: OnRefused) -> None:
        """Nothing is opened yet."""
        self._config = config
        self._on_refused = on_refused
        self._known: set[str] = set()  # topics of which records were committed, or have a callback
        self._outcomes: collections.deque[tuple[str, TuttiError | None]] = collections.deque()
        self._held: collections.deque[Part] = collections.deque()
        self._producer: Producer | None = None
        self._taken = self._committed = 0
        self._looking = threading.Lock()
        self._last: Receipt | None = None

    @property
    def flowing(self) -> bool:
        """Whether it has a producer."""
        return self._producer is not None

    @property
    def waiting(self) -> int:
        """Records that are not committed, those of earlier runs too. Others may look: a part that is being handed over counts twice
        then, and never not at all, as what is held is counted before what the producer has.
        """
        held = sum(part.records.num_rows for part in list(self._held))
        return held + (len(self._producer) if self._producer is not None else 0)

    @property
    def spooled(self) -> int:
        """How many of these are on the disk."""
        return self._producer.spool.records if self._producer is not None else 0

    @property
    def records(self) -> int:
        """Committed by this instance: those of earlier ones go first. It never goes back, whatever counts twice for a moment."""
        with self._looking:
            self._committed = max(self._committed, self._taken - self.waiting)
            return self._committed

    @property
    def room(self) -> bool:
        """Whether more may be taken."""
        return not self._held

    def open(self) -> None:
        """Open the spool; no gateway is needed for that.

        Raises:
            TuttiError: the spool is another's, damaged, or used by another process.
        """
        config = self._config
        self._producer = (Producer if config.topic else _NamedTopics)(
            config.gateways,
            producer=config.name,
            buffer_bytes=limits.HELD_BYTES_MAX,
            on_full="raise",
            delivery_timeout=limits.DELIVERY_S,
            spool=config.spool,
        )
        earlier = self._producer.spool.earlier
        if earlier:
            LOG.info("%s: the spool has %d records of earlier runs, which go first", config.name, earlier)

    def add(self, parts: list[Part]) -> None:
        """Take records over."""
        self._held.extend(parts)  # before they count as taken: what is not held any more is committed for who looks
        self._taken += sum(part.records.num_rows for part in parts)

    def tend(self, _now: float) -> None:
        """Hand to the producer what it has room for.

        Raises:
            TuttiError: the producer ended, and why.
        """
        self._settle()
        while self._held and self._producer is not None:
            part = self._held[0]
            outcome = None if part.topic in self._known else partial(self.heard, part.topic)
            try:
                self._last = self._producer.send_batch(part.topic, part.records, on_delivery=outcome)
            except BufferFull:
                return
            if self._last.done() and isinstance(self._last.error, TooLarge):
                raise self._last.error  # parts are cut so that none is
            self._known.add(part.topic)
            self._held.popleft()

    def heard(self, topic: str, error: TuttiError | None, _receipt: Receipt) -> None:
        """The outcome of the first records of a topic, in an I/O thread of the client."""
        self._outcomes.append((topic, error))

    def _settle(self) -> None:
        while self._outcomes:
            topic, error = self._outcomes.popleft()
            if error is None:
                continue
            self._known.discard(topic)
            if isinstance(error, Refused) and error.topic and not self._config.topic:
                parts = [part for part in self._held if part.topic == topic]
                self._on_refused(topic, str(error), parts)
                self._held = collections.deque(part for part in self._held if part.topic != topic)
                self._taken -= sum(part.records.num_rows for part in parts)

    def wait(self, seconds: float) -> None:
        """For room, so long."""
        time.sleep(seconds)

    def close(self, seconds: float) -> int:
        """Hand over what is held, for so long at most; how many records are left that the spool had no room for.

        Raises:
            TuttiError: the producer ended, and why.
        """
        deadline = time.monotonic() + seconds
        try:
            while self._held and time.monotonic() < deadline:
                self.tend(time.monotonic())
                self.wait(limits.TURN_S if self._held else 0.0)
            if self._last is not None and not self._held:
                self._last.spooled(max(0.1, deadline - time.monotonic()))
        finally:
            if self._producer is not None:
                self._producer.close()
        return sum(part.records.num_rows for part in self._held)
