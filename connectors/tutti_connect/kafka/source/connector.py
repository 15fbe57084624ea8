"""From Kafka into the log: one thread takes messages and hands them to the partitions' producers, others open and close those.

No Kafka in here, and no gateway: `Kafka` and `Opener` are what is asked of them, so that tests play both.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from tutti.errors import ConfigError, FormatError, NotAllowed, Refused, TuttiError, Unavailable, Unknown, UsageError
from tutti.runtime.backoff import Doubling
from tutti_connect.kafka import limits
from tutti_connect.kafka.source.batches import Source, offset_of, records_of
from tutti_connect.kafka.source.partition import Key, Partition, State, Turn
from tutti_connect.kafka.source.progress import Place, check_same, note_of, producer_name
from tutti_connect.kafka.source.start_offsets import Committer, Topic, resolve_latest
from tutti_connect.quarantine import Quarantine

if TYPE_CHECKING:
    from confluent_kafka import Message

    from tutti.producer import Producer
    from tutti_connect.kafka.config import Inflow
    from tutti_connect.kafka.source.consumer import Consumed

LOG = logging.getLogger("tutti.kafka")

#: Opens the producer of a name, with so many bytes of buffer, and begins its epoch.
Opener = Callable[[str, int], "Producer"]
#: Returns when a gateway has answered; Unavailable when none does.
Asker = Callable[[], object]


class Kafka(Protocol):
    """As `tutti_connect.kafka.source.consumer.KafkaSource`: errors and meaning stand there."""

    def topics(self) -> dict[str, Source]:
        """Ids of the topics."""

    def edges(self, key: Key) -> tuple[int, int]:
        """First offset, and that behind the last."""

    def ends(self, topic: str) -> dict[int, int]:
        """End offset of each partition."""

    def noted(self, keys: Iterable[Key]) -> dict[Key, tuple[int, str]]:
        """What the group has noted."""

    def subscribe(self, assigned: Callable[[list[Key]], None], revoked: Callable[[], None], lost: Callable[[], None]) -> None:
        """Take part in the group."""

    def consume(self) -> Consumed:
        """What there is."""

    def assign(self, places: Mapping[Key, int]) -> None:
        """Which partitions flow, and from where."""

    def pause(self, keys: Iterable[Key]) -> None:
        """Have these wait."""

    def resume(self, keys: Iterable[Key]) -> None:
        """Have these flow."""

    def high(self, key: Key) -> int:
        """How far a partition goes."""

    def note(self, places: Mapping[Key, tuple[int, str]], *, wait: bool) -> None:
        """Note offsets in the group."""

    def close(self) -> None:
        """Leave the group."""


class Connector:
    """Brings topics of Kafka into the log, each record once, in each partition's order.

    `run` belongs to one thread; `partitions` may be looked at by others (metrics).
    """

    def __init__(self, config: Inflow, kafka: Kafka, opener: Opener, asker: Asker, committer: Committer) -> None:
        """Prepare; nothing is asked yet.

        Raises:
            ConfigError: the quarantine cannot be written.
        """
        self.config = config
        self.partitions: dict[Key, Partition] = {}
        self.quarantine = Quarantine(config.quarantine)
        self._kafka, self._opener, self._asker, self._committer = kafka, opener, asker, committer
        self._topics: dict[str, Source] = {}
        self._openings: dict[Key, Future[tuple[Producer, int, int]]] = {}
        self._pool = ThreadPoolExecutor(limits.OPENERS, "opener")
        self._checking: Future[dict[str, Source]] | None = None
        self._moved = False
        self._paused: set[Key] = set()
        self._report_at = self._look_at = self._check_at = 0.0
        self._fatal: Exception | None = None

    def run(self, stop: threading.Event, ready: Callable[[], None]) -> None:
        """Until `stop`, or something that trying again cannot mend; `ready` is called when Kafka and a gateway have answered, and
        the log says where the partitions start.

        Raises:
            Unavailable: one of both does not answer at the start.
            NotAllowed: the gateways do not let it in.
            ConfigError: a topic is not there, or another one than before.
        """
        try:
            self._topics = self._kafka.topics()
            self._asker()  # who cannot deliver takes no partition from those who can
            if self.config.kafka.start == "latest":
                self._resolve_starts(stop)
            if stop.is_set():
                return
            self._kafka.subscribe(self._assigned, self._revoked, self._lost)
            ready()
            while not stop.is_set() and self._fatal is None:
                self._turn()
            if self._fatal is not None:
                raise self._fatal
        finally:
            self._end()

    def _resolve_starts(self, stop: threading.Event) -> None:
        """Have the log say where all partitions start, before anybody hears that this instance is ready.

        Raises:
            TuttiError: Kafka or the gateways do not answer, or not to this client.
        """
        waits = Doubling(limits.FENCED_S_MIN, limits.FENCED_S_MAX)
        waiting = list(self._topics.values())
        while waiting and not stop.is_set():
            topic = Topic(self.config.name, waiting[0], self.config.topic or waiting[0].topic)
            try:
                resolve_latest(topic, self._kafka, self._committer, self._check_same, self._for_each)
                waiting.pop(0)
            except (Refused, Unknown) as error:
                if isinstance(error, Refused) and error.code not in _INTERRUPTED:
                    raise
                LOG.warning("%s: where topic %s starts is asked again: %s", self.config.name, waiting[0].topic, error)
                stop.wait(waits.next_s())

    def _for_each(self, act: Callable[[int], object], numbers: Iterable[int]) -> None:
        """Call `act` in the openers' threads, and raise what the first of them raised once all calls have ended."""
        calls = [self._pool.submit(act, number) for number in numbers]
        wait(calls)
        for call in calls:
            call.result()

    # What Kafka's client calls, inside of `consume`.

    def _assigned(self, given: list[Key]) -> None:
        for topic, number in given:
            self.partitions[topic, number] = Partition(topic, number, self.config.topic or topic)
        LOG.info("%s: %d partitions are this instance's", self.config.name, len(given))
        self._moved = False

    def _revoked(self) -> None:
        wait(self._hand_over(), timeout=limits.HANDOVER_S)

    def _lost(self) -> None:
        self._hand_over()

    def _hand_over(self) -> list[Future[None]]:
        """Let go of all partitions; what they have on its way is delivered, unless another instance is there first."""
        left, self.partitions = self.partitions, {}
        openings, self._openings = self._openings, {}
        self._paused.clear()
        for opening in openings.values():
            opening.add_done_callback(_close_opened)
        return [self._pool.submit(producer.close) for one in left.values() if (producer := one.taken()) is not None]

    # One turn.

    def _turn(self) -> None:
        consumed = self._kafka.consume()
        for key, messages in _by_partition(consumed.messages, self.config.kafka.topics):
            if (partition := self._flowing(key)) is not None:
                self._take(partition, messages)
        for key, end in consumed.ended:
            if (partition := self._flowing(key)) is not None:
                partition.take((), end)
        for key, told in consumed.missing:
            if (partition := self._flowing(key)) is not None:
                self._fail(partition, Unavailable(f"Kafka has nothing at offset {partition.next}: {told}"))  # `_open` looks why
        now = time.monotonic()
        for key, partition in list(self.partitions.items()):
            self._tend(key, partition, now)
        if self._moved:
            self._assign()
        self._pause()
        if now >= self._look_at:
            self._look_at = now + limits.LOOK_S
            self._look()
        if now >= self._report_at:
            self._report_at = now + limits.REPORT_S
            self._report(wait=False)
        self._check_topics(now)

    def _flowing(self, key: Key) -> Partition | None:
        partition = self.partitions.get(key)
        return partition if partition is not None and partition.state is State.FLOWING else None

    def _check_topics(self, now: float) -> None:
        """See that no topic was made anew under its name, whose records would be taken for those behind the old ones."""
        checking = self._checking
        if checking is None and now >= self._check_at:
            self._checking = self._pool.submit(self._kafka.topics)
        elif checking is not None and checking.done():
            self._checking, self._check_at = None, now + limits.CHECK_S
            error = checking.exception()
            if error is None:
                try:
                    self._check_same(checking.result())
                except ConfigError as other:
                    self._end_by(other)
            elif isinstance(error, ConfigError):
                self._end_by(error)  # it is gone

    def _check_same(self, topics: Mapping[str, Source]) -> None:
        """Refuse topics that were made anew since the start.

        Raises:
            ConfigError: one is another.
        """
        for name, source in topics.items():
            if source != self._topics[name]:
                raise ConfigError(f"{name}: the topic, or Kafka, is another one than when this instance was started")

    def _end_by(self, error: Exception) -> None:
        """End with what trying again cannot mend; the first such reason counts."""
        self._fatal = self._fatal or error

    def _take(self, partition: Partition, messages: Sequence[Message]) -> None:
        """New messages of one partition: what can be a record waits for its producer, the rest goes into quarantine."""
        # What was on its way when its partition was assigned anew comes again.
        if offset_of(messages[0]) < partition.next:
            messages = [message for message in messages if offset_of(message) >= partition.next]
            if not messages:
                return
        cuts, bad = records_of(messages)
        try:
            for poison in bad:
                source = self._topics[partition.topic]
                self.quarantine.put(f"{source.topic}-{poison.place}", source, poison.reason, poison.told(source))
                LOG.warning(
                    "%s[%d] offset %s: quarantined: %s", partition.topic, partition.number, poison.message.offset(), poison.reason
                )
        except (TuttiError, OSError) as error:
            self._fail(partition, error)
            return
        partition.take(cuts, offset_of(messages[-1]) + 1)

    def _tend(self, key: Key, partition: Partition, now: float) -> None:
        """Open it when it is time, and hand its producer what waits."""
        if partition.state is State.WAITING and partition.retry_at <= now:
            partition.turn(Turn.OPEN)
            self._openings[key] = self._pool.submit(self._open, partition)
        elif partition.state is State.OPENING and self._openings[key].done():
            opening = self._openings.pop(key)
            error = opening.exception()
            if error is None:
                partition.opened(*opening.result())
                self._moved = True
                self._report_at = now  # a place that only Kafka knows of is told to it at once
            elif isinstance(error, TuttiError) and not isinstance(error, _NEVER):
                self._fail(partition, error)
            else:
                self._end_by(error if isinstance(error, Exception) else RuntimeError(str(error)))
        elif partition.state is State.FLOWING:
            topic = self._topics[partition.topic]
            try:
                partition.push(lambda following: Place(topic.cluster, topic.topic_id, following).encode())
            except UsageError as error:
                self._end_by(error)
            except TuttiError as error:
                self._fail(partition, error)

    def _fail(self, partition: Partition, error: Exception) -> None:
        known = partition.trouble
        producer = partition.failed(error, time.monotonic())
        if partition.trouble.partition(":")[0] != known.partition(":")[0]:  # the same again and again is told once
            LOG.warning(
                "%s[%d]: begins again behind %d: %s", partition.topic, partition.number, partition.committed, partition.trouble
            )
        if producer is not None:
            self._pool.submit(producer.close)
        self._moved = True

    def _open(self, partition: Partition) -> tuple[Producer, int, int]:
        """Begin an epoch, which ends that of whoever had the partition before; the offset to go on with, and the log's own."""
        name = producer_name(self.config.name, partition.topic, partition.number)
        share = limits.BUFFER_BYTES_ALL // max(1, len(self.partitions))
        producer = self._opener(name, min(limits.BUFFER_BYTES_MAX, max(limits.BUFFER_BYTES_MIN, share)))
        try:
            progress = producer.resume().progress
            if not progress:  # with "latest" it was added after the topic had started (`start.py`)
                return producer, self._edges(partition.key)[0], -1
            place = Place.decode(progress, name)
            topic = self._topics[partition.topic]
            check_same(place, Place(topic.cluster, topic.topic_id, 0), name, partition.source)
            return producer, self._still_there(partition, place), place.next
        except BaseException:
            producer.close()
            raise

    def _edges(self, key: Key) -> tuple[int, int]:
        """What Kafka has of a partition, of the topic that was there at the start.

        Raises:
            ConfigError: the topic was made anew since.
        """
        edges = self._kafka.edges(key)
        self._check_same(self._kafka.topics())
        return edges

    def _still_there(self, partition: Partition, place: Place) -> int:
        """Where to go on, if Kafka still has what comes next.

        Raises:
            ConfigError: it has not, and somebody has to say that this may be.
        """
        following = place.next
        low, high = self._edges(partition.key)
        if following < low:
            # What is gone may have been no records: marks of transactions, or what is in quarantine. Who read it has noted it.
            offset, note = self._kafka.noted([partition.key])[partition.key]
            if note == note_of(place):
                following = max(following, offset)
        if low <= following <= high:
            return following
        if self.config.kafka.lost == "fail":
            raise ConfigError(
                f"{partition.source}: the log goes on at offset {following} of Kafka, which has {low} to {high}: what lies between "
                f'was removed before it came, or Kafka lost its end. To go on with what is there, set lost = "skip" below [kafka]'
            )
        there = low if following < low else high
        LOG.warning(
            "%s: Kafka has offsets %d to %d and the log goes on at %d: goes on at %d", partition.source, low, high, following, there
        )
        return there

    def _assign(self) -> None:
        """Say to Kafka's client which partitions flow, and from where each: the one way in which places change."""
        self._moved = False
        self._kafka.assign({key: one.next for key, one in self.partitions.items() if one.state is State.FLOWING})
        self._paused.clear()

    def _pause(self) -> None:
        """Have Kafka wait where a producer has no room."""
        full = {key for key, one in self.partitions.items() if one.state is State.FLOWING and one.full}
        if more := full - self._paused:
            self._kafka.pause(more)
        if less := self._paused - full:
            self._kafka.resume(key for key in less if key in self.partitions)
        self._paused = full

    def _look(self) -> None:
        """Note how much Kafka has, for the metrics: its consumer lets other threads wait as long as it is polled."""
        for key, one in self.partitions.items():
            if one.state is State.FLOWING:
                one.high = max(one.high, self._kafka.high(key))

    def _report(self, *, wait: bool) -> None:
        """Tell Kafka what the log has: for those who watch the lag there, and how far what is no record reaches behind it."""
        places = {}
        for key, one in self.partitions.items():
            if one.state is State.FLOWING:
                topic = self._topics[one.topic]
                places[key] = one.committed, note_of(Place(topic.cluster, topic.topic_id, one.logged))
        if places:
            self._kafka.note(places, wait=wait)

    def _end(self) -> None:
        """Deliver what was taken, and leave."""
        flowing = [one for one in self.partitions.values() if one.state is State.FLOWING]
        deadline = time.monotonic() + limits.DELIVERY_S
        for one in flowing:
            if one.producer is not None:
                one.producer.flush(max(0.0, deadline - time.monotonic()))
        for one in flowing:
            one.settled()
        self._report(wait=True)
        closing = self._hand_over()
        self._kafka.close()
        wait(closing, timeout=limits.HANDOVER_S)
        self._pool.shutdown(wait=True, cancel_futures=True)


def _by_partition(messages: Sequence[Message], topics: Sequence[str]) -> list[tuple[Key, Sequence[Message]]]:
    """Messages of each partition, in its order; `topics` are all that they may be of.

    Kafka's client gives them in runs of one partition: a call a message is what costs here.
    """
    if not messages:
        return []
    count, kind = len(messages), type(messages[0])
    partitions: Iterator[Any] = map(kind.partition, messages)
    places = np.fromiter(partitions, np.int64, count)
    if len(topics) > 1:
        numbers: dict[str | None, int] = {topic: number for number, topic in enumerate(topics)}
        places += np.fromiter(map(numbers.__getitem__, map(kind.topic, messages)), np.int64, count) << 32
    found: dict[int, list[Message]] = {}
    for first, last in pairwise([0, *(np.flatnonzero(np.diff(places)) + 1).tolist(), count]):
        found.setdefault(int(places[first]), []).extend(messages[first:last])
    return [((topics[place >> 32], place & 0xFFFF_FFFF), some) for place, some in found.items()]


#: Codes of `Refused` where another instance resolved the starts at the same moment, or a gateway was lost meanwhile.
_INTERRUPTED = {"aborted", "fenced", "staged"}
#: What opening again does not mend.
_NEVER = (ConfigError, UsageError, FormatError, NotAllowed)


def _close_opened(opening: Future[tuple[Producer, int, int]]) -> None:
    if not opening.cancelled() and opening.exception() is None:
        opening.result()[0].close()
