"""Producers for HTTP posts: one for all posts without a producer name, and one for each producer name, opened on demand.

The sequence in HTTP is the producer's sequence in the log, and the producer's progress contains its recent posts. NOTES.md
describes how a process recognises a repeated post.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, NamedTuple, TypeVar

import pyarrow as pa

from tutti.batching.receipt import OnDelivery, Receipt
from tutti.errors import Aborted, Fenced, FormatError, TooLarge, TuttiError, Unavailable, Unknown
from tutti.producer import Producer
from tutti_connect.http import limits
from tutti_connect.http.interface.problems import Problem
from tutti_connect.http.produce.bodies import Records
from tutti_connect.http.produce.post_history import History, Post, Verdict

LOG = logging.getLogger("tutti.http")
Result = TypeVar("Result")
OnSent = Callable[[], None]
_RETRIED_ERRORS = (Fenced, Aborted, Unknown, Unavailable)
_DECIDED_ERRORS = (Aborted, TooLarge)  # after these errors, the records are certainly not committed


class Outcome(NamedTuple):
    """Outcome of a committed post: offset of its first record (None if unknown), and whether an earlier post had committed it."""

    offset: int | None
    repeated: bool = False


class NamedProducer:
    """A named producer, whose `lock` lets only one of its posts run at a time."""

    def __init__(self, name: str) -> None:
        """Start closed; `name` is the name in the log."""
        self.name = name
        self.lock = asyncio.Lock()
        self.waiting = 0
        self.producer: Producer | None = None
        self.history = History()


class Producers:
    """All producers. The event loop calls the methods, which run blocking work in threads."""

    def __init__(self, url: str, prefix: str, search: Callable[[str, History, int, Records], int | None]) -> None:
        """Start without open producers.

        Args:
            url: addresses of the gateways.
            prefix: prefix of the producers' names in the log.
            search: function `record_pages.search`, with arguments producer, history, first sequence and records; runs in a thread.
        """
        self.repeated = self.reclaimed = 0
        self._url, self._prefix, self._search = url, prefix, search
        self._named: OrderedDict[str, NamedProducer] = OrderedDict()
        self._openers = ThreadPoolExecutor(limits.OPENERS, "producer-opener")
        self._searchers = ThreadPoolExecutor(limits.SEARCHERS, "searcher")
        self._anonymous: Producer | None = None
        self._anonymous_lock = asyncio.Lock()

    @property
    def opened(self) -> int:
        """Return the number of open named producers."""
        return sum(named.producer is not None for named in self._named.values())

    # Posts without a producer name have at-least-once delivery: a repeated post is a new post.

    async def post(self, records: Records, on_sent: OnSent) -> Outcome:
        """Commit the records of a post without a producer name; the log cannot recognise a repeat.

        Args:
            records: the posted records.
            on_sent: function to call as soon as the records are sent.

        Raises:
            TuttiError: the records are not committed, or their outcome is unknown.
        """
        loop = asyncio.get_running_loop()
        deadline = loop.time() + limits.DELIVERY_S
        for last in (False, False, True):
            producer = self._anonymous or await self._open_anonymous()
            try:
                receipt = await self._deliver(producer, records, None, on_sent)
            except Aborted:
                if last or loop.time() >= deadline:  # at the deadline, the record was never sent, because no gateway answers
                    raise
                continue  # an aborted record is not in the log, so sending it again cannot duplicate it
            except TuttiError:
                await self._replace_ended(producer)
                raise
            return Outcome(known_offset(receipt.offset))
        raise AssertionError("the last try returns or raises")

    async def _open_anonymous(self) -> Producer:
        async with self._anonymous_lock:
            if self._anonymous is None:
                make = partial(self._create_producer, None, limits.BUFFER_BYTES)
                self._anonymous = await self._in_thread(self._openers, make)
            return self._anonymous

    async def _replace_ended(self, producer: Producer) -> None:
        """Close the unnamed producer if it can no longer send, for example after the loss of its state or its token's rights."""
        try:
            await self._in_thread(self._openers, partial(producer.resume, 0.0))
        except Unavailable:
            return  # the producer is still reconnecting
        except TuttiError:
            if self._anonymous is producer:
                self._anonymous = None
                self._openers.submit(_close, producer)

    # Posts with a producer name have exactly-once delivery.

    async def post_once(self, producer: str, first: int, records: Records, on_sent: OnSent) -> Outcome:
        """Commit records, or return the earlier outcome of a repeated post; `first` is the sequence of the first record.

        Raises:
            Problem: 409 if the sequence leaves a gap or the log has other records there; 429 if too many posts wait.
            TuttiError: the outcome is unknown; repeating the post is safe, at this or another process.
        """
        named = self._named_producer(producer)
        named.waiting += 1
        try:
            async with named.lock:
                async with asyncio.timeout(limits.POST_S):
                    return await self._post_with_retries(named, first, records, on_sent)
        except TimeoutError:
            raise Unknown(f"producer {producer} did not get an outcome within {limits.POST_S:g} s") from None
        finally:
            named.waiting -= 1

    async def expected(self, producer: str) -> int:
        """Return the expected sequence of the producer's next post.

        Raises:
            TuttiError: no gateway answers.
        """
        named = self._named_producer(producer)
        named.waiting += 1
        try:
            async with named.lock:
                # Open the producer again: another process may have posted, and only a new epoch reads the current sequence.
                await self._close_producer(named)
                await self._open(named)
                return named.history.expected
        finally:
            named.waiting -= 1

    def _named_producer(self, producer: str) -> NamedProducer:
        name = f"{self._prefix}.{producer}"
        named = self._named.get(name)
        if named is None:
            self._close_idle()
            named = self._named[name] = NamedProducer(name)
        self._named.move_to_end(name)
        if named.waiting >= limits.WAITING_A_PRODUCER_MAX:
            raise Problem(
                429, f"{named.waiting} posts of producer {producer} are already waiting: send the next one after an answer"
            )
        return named

    def _close_idle(self) -> None:
        while len(self._named) >= limits.PRODUCERS_OPEN_MAX:
            idle = next((named for named in self._named.values() if not named.waiting), None)
            if idle is None:
                raise Problem(429, f"{len(self._named)} producers are posting at this moment: retry later, or at another process")
            del self._named[idle.name]
            if idle.producer is not None:
                self._openers.submit(_close, idle.producer)

    async def _post_with_retries(self, named: NamedProducer, first: int, records: Records, on_sent: OnSent) -> Outcome:
        digest = records.digest()
        delay = 0.0
        fresh = uncertain = False
        for tries_left in reversed(range(limits.TRIES_MAX)):
            try:
                if named.producer is None:
                    await self._open(named)
                    fresh = True
                verdict, post = named.history.classify(first, records.count, digest)
                if verdict is Verdict.NEXT:
                    # The progress lacks the post, so no earlier attempt has committed it, and the ended epochs never will.
                    uncertain = False
                    return await self._send_next(named, first, records, digest, on_sent)
                if not fresh:
                    # Another process may have posted since, so classify again with the progress that a new epoch reads.
                    await self._close_producer(named)
                    continue
                return await self._answer_repeat(named, verdict, post, first, records)
            except TuttiError as error:
                uncertain = uncertain or isinstance(error, Unknown | Fenced)
                if not (uncertain or isinstance(error, Aborted)):
                    raise
                # Loop again: a new epoch starts only after all earlier frames are decided, so its progress shows the outcome.
                if not tries_left or not isinstance(error, _RETRIED_ERRORS):
                    raise Unknown(f"it is unknown whether the post is committed: {error}") from error
                self.reclaimed += isinstance(error, Fenced)
                LOG.info("producer %s restarts: %s: %s", named.name, type(error).__name__, error)
                await asyncio.sleep(delay * random.uniform(0.5, 1.5))
                delay = min(max(delay * 2, limits.FENCED_S_MIN), limits.FENCED_S_MAX)
        raise Unknown("it is unknown whether the post is committed: other processes took over its producer repeatedly")

    async def _send_next(self, named: NamedProducer, first: int, records: Records, digest: bytes, on_sent: OnSent) -> Outcome:
        """Send the post with the expected sequence; on failure close the producer, because its history may be outdated."""
        producer, history = named.producer, named.history
        if producer is None:
            raise Unavailable(f"producer {named.name} is not open")
        try:
            receipt = await self._deliver(producer, records, history.progress(records.count, digest), on_sent)
        except BaseException:
            await asyncio.shield(self._close_producer(named))
            raise
        offset = known_offset(receipt.offset)
        history.committed(records.count, digest, -1 if offset is None else offset)
        return Outcome(offset)

    async def _answer_repeat(
        self, named: NamedProducer, verdict: Verdict, post: Post | None, first: int, records: Records
    ) -> Outcome:
        """Return the outcome of a repeated post, or raise the conflict of a post with a wrong sequence."""
        history, last = named.history, first + records.count - 1
        text = f"records {first} to {last}" if records.count > 1 else f"record {first}"
        if verdict is Verdict.GAP:
            raise _conflict(history, "gap", f"{text} would leave a gap: the log has this producer's records up to {history.last}")
        if verdict is Verdict.OVERLAP:
            raise _conflict(history, "overlap", f"the log already has a part of {text}, up to {history.last}: post the rest")
        if verdict is Verdict.DIFFERENT:
            raise _conflict(history, "different", f"the log already has {text}, with other content or other boundaries")
        offset = None if post is None else known_offset(post.offset)
        if offset is None:
            search = partial(self._search, named.name, history, first, records)
            offset = await self._in_thread(self._searchers, search)
            if offset is not None and post is not None:
                history.set_offset(post, offset)
        if offset is None and verdict is Verdict.OLD:
            raise _conflict(
                history,
                "unverified",
                f"the log already has {text}, but too far back for a search: the content cannot be compared",
            )
        self.repeated += 1
        return Outcome(offset, True)

    async def _open(self, named: NamedProducer) -> None:
        producer = await self._in_thread(self._openers, partial(self._create_producer, named.name, limits.PRODUCER_BUFFER_BYTES))
        try:
            resumed = await self._in_thread(self._openers, partial(producer.resume, limits.CONNECT_S))
            named.history = _longer_history(named.history, History.decode(resumed.sequence, resumed.progress, named.name))
        except FormatError as error:
            self._openers.submit(_close, producer)
            raise Problem(409, str(error), conflict="foreign") from error
        except BaseException:
            self._openers.submit(_close, producer)
            raise
        named.producer = producer

    async def _close_producer(self, named: NamedProducer) -> None:
        producer, named.producer = named.producer, None
        if producer is not None:
            await self._in_thread(self._openers, partial(_close, producer))

    # Helpers of named and unnamed producers.

    def _create_producer(self, name: str | None, buffer_bytes: int) -> Producer:
        return Producer(
            self._url,
            name,
            buffer_bytes=buffer_bytes,
            on_full="raise",
            delivery_timeout=limits.DELIVERY_S,
            connect_timeout=limits.CONNECT_S,
        )

    async def _deliver(self, producer: Producer, records: Records, progress: bytes | None, on_sent: OnSent) -> Receipt:
        """Send records, and wait for the outcome.

        Raises:
            Unknown: the records were sent, and may be committed; also if the producer ended with records in flight.
            Fenced: another process took over the producer; the records may be committed.
            TuttiError: the records are not committed.
        """
        loop = asyncio.get_running_loop()
        outcome: asyncio.Future[Receipt] = loop.create_future()

        def on_delivery(error: TuttiError | None, receipt: Receipt) -> None:
            if error is not None and receipt.left and not isinstance(error, _DECIDED_ERRORS):
                error = Unknown(f"it is unknown whether the post is committed: {error}")
            with contextlib.suppress(RuntimeError):  # the event loop has ended
                loop.call_soon_threadsafe(_resolve, outcome, error, receipt)

        send_post(producer, records, progress, on_delivery)
        on_sent()
        return await outcome

    async def _in_thread(self, pool: ThreadPoolExecutor, call: Callable[[], Result]) -> Result:
        return await asyncio.get_running_loop().run_in_executor(pool, call)

    def close(self) -> None:
        """Block until the records in flight are delivered or the delivery timeout has passed, and close all producers."""
        producers = [named.producer for named in self._named.values() if named.producer is not None]
        if self._anonymous is not None:
            producers.append(self._anonymous)
        for producer in producers:
            self._openers.submit(_close, producer)
        self._openers.shutdown(wait=True)
        self._searchers.shutdown(wait=True)


def _longer_history(before: History, current: History) -> History:
    """Return the history `before` of this process if it is still valid, else the history `current`, which is read from the log.

    The history of this process is preferred, because it is longer (up to 1024 posts). A post by another process makes this history
    invalid, and so does the deletion of the producer's state, which starts a new numbering.
    """
    if (
        before.count == current.count
        and before.posts
        and before.last == current.last
        and current.posts
        and before.posts[-1].digest == current.posts[-1].digest
    ):
        return before
    return current


def send_post(producer: Producer, records: Records, progress: bytes | None, on_delivery: OnDelivery) -> Receipt:
    """Send the records of a post in one frame; a single record may share its frame with other posts, which is faster."""
    if records.count == 1:
        value, key, time_us, headers = _single_record(records.batch)
        return producer.send(records.topic, value, key, time_us, headers, progress, on_delivery)
    return producer.send_batch(records.topic, records.batch, progress, on_delivery)


def _single_record(batch: pa.RecordBatch) -> tuple[Any, Any, Any, Any]:
    """Return value, key, time and headers of the batch's only record, as arguments of `Producer.send`."""
    key, value, time_us, headers = (column[0] for column in batch.columns)
    pairs = [(one["key"], one["value"]) for one in headers.as_py() or ()]
    return value.as_py(), key.as_py(), time_us.value, pairs


def _resolve(outcome: asyncio.Future[Receipt], error: TuttiError | None, receipt: Receipt) -> None:
    if outcome.done():
        return
    if error is None:
        outcome.set_result(receipt)
    else:
        outcome.set_exception(error)


def known_offset(offset: int | None) -> int | None:
    """Return the offset of a receipt, or None if the receipt does not know its offset."""
    return None if offset is None or offset < 0 else offset


def _close(producer: Producer) -> None:
    with contextlib.suppress(TuttiError):
        producer.close()


def _conflict(history: History, kind: str, message: str) -> Problem:
    return Problem(409, f"{message}; the next expected sequence is {history.expected}", conflict=kind, expected=history.expected)
