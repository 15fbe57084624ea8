"""The producers of the log that posts go through: one for those without a name, and one for each HTTP producer, opened on demand.

The idea of a repeat (see NOTES.md): the sequence of HTTP is the log's own, and what the last posts were is the producer's progress.
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
Sent = Callable[[], None]
_AGAIN = (Fenced, Aborted, Unknown, Unavailable)
_DECIDED = (Aborted, TooLarge)  # of what was sent: that it is in no log


class Outcome(NamedTuple):
    """What became of a post: the offset of its first record, None when it is not known; and whether it was committed before."""

    offset: int | None
    repeated: bool = False


class Named:
    """One HTTP producer. Its posts are dealt with one after another."""

    def __init__(self, name: str) -> None:
        """Not opened yet; `name` is the log's."""
        self.name = name
        self.lock = asyncio.Lock()
        self.waiting = 0
        self.producer: Producer | None = None
        self.history = History()


class Producers:
    """All of them. Used in the event loop; what blocks is done in threads."""

    def __init__(self, url: str, prefix: str, search: Callable[[str, History, int, Records], int | None]) -> None:
        """Nothing is opened.

        Args:
            url: of the gateways.
            prefix: what names of producers in the log begin with.
            search: finds a post in the log: (producer, what is known of it, first sequence, records) -> offset, None if it is not
                found in time; raises `Problem` where what is found is another post. Runs in a thread.
        """
        self.repeated = self.taken_back = 0
        self._url, self._prefix, self._search = url, prefix, search
        self._named: OrderedDict[str, Named] = OrderedDict()
        self._openers = ThreadPoolExecutor(limits.OPENERS, "producer-opener")
        self._searchers = ThreadPoolExecutor(limits.SEARCHERS, "searcher")
        self._nameless: Producer | None = None
        self._nameless_lock = asyncio.Lock()

    @property
    def opened(self) -> int:
        """How many producers by name are open."""
        return sum(named.producer is not None for named in self._named.values())

    # Posts without a name: at least once.

    async def post(self, records: Records, sent: Sent) -> Outcome:
        """Commit records, without protection against a repeat.

        Args:
            records: what is posted.
            sent: called when they are on their way.

        Raises:
            TuttiError: why they are not committed, or that it is not known.
        """
        for last in (False, False, True):
            producer = self._nameless or await self._open_nameless()
            try:
                receipt = await self._deliver(producer, records, None, sent)
            except Aborted:
                if last:
                    raise
                continue  # it is in no log, and the producer goes on
            except TuttiError:
                await self._leave_ended(producer)
                raise
            return Outcome(known_offset(receipt.offset))
        raise AssertionError("the last try returns or raises")

    async def _open_nameless(self) -> Producer:
        async with self._nameless_lock:
            if self._nameless is None:
                make = partial(self._make, None, limits.BUFFER_BYTES)
                self._nameless = await self._in_thread(self._openers, make)
            return self._nameless

    async def _leave_ended(self, producer: Producer) -> None:
        """Have another take the place of a producer that sends no more: forgotten, or its token was not taken for a while."""
        try:
            await self._in_thread(self._openers, partial(producer.resume, 0.0))
        except Unavailable:
            return  # it looks for a gateway
        except TuttiError:
            if self._nameless is producer:
                self._nameless = None
                self._openers.submit(_close, producer)

    # Posts of a producer: once.

    async def post_once(self, producer: str, first: int, records: Records, sent: Sent) -> Outcome:
        """Commit records under the sequence of the first of them, or find that they are.

        Raises:
            Problem: 409: something before them is missing, or the log has something else there; 429: too many wait.
            TuttiError: why it is not known whether they are committed: the same post may be repeated, here or elsewhere.
        """
        named = self._take(producer)
        named.waiting += 1
        try:
            async with named.lock:
                async with asyncio.timeout(limits.POST_S):
                    return await self._tried(named, first, records, sent)
        except TimeoutError:
            raise Unknown(f"producer {producer} had no outcome within {limits.POST_S:g} s") from None
        finally:
            named.waiting -= 1

    async def expected(self, producer: str) -> int:
        """Sequence of the first record that the producer posts next.

        Raises:
            TuttiError: no gateway tells.
        """
        named = self._take(producer)
        named.waiting += 1
        try:
            async with named.lock:
                await self._leave(named)  # another process may have gone on since: only who begins an epoch knows
                await self._open(named)
                return named.history.expected
        finally:
            named.waiting -= 1

    def _take(self, producer: str) -> Named:
        name = f"{self._prefix}.{producer}"
        named = self._named.get(name)
        if named is None:
            self._make_room()
            named = self._named[name] = Named(name)
        self._named.move_to_end(name)
        if named.waiting >= limits.WAITING_A_PRODUCER_MAX:
            raise Problem(429, f"{named.waiting} posts of producer {producer} wait already: send the next when one is answered")
        return named

    def _make_room(self) -> None:
        while len(self._named) >= limits.PRODUCERS_OPEN_MAX:
            idle = next((named for named in self._named.values() if not named.waiting), None)
            if idle is None:
                raise Problem(429, f"{len(self._named)} producers post at this moment: come again, or to another process")
            del self._named[idle.name]
            if idle.producer is not None:
                self._openers.submit(_close, idle.producer)

    async def _tried(self, named: Named, first: int, records: Records, sent: Sent) -> Outcome:
        digest = records.digest()
        delay = 0.0
        fresh = doubt = False
        for left in reversed(range(limits.TRIES_MAX)):
            try:
                if named.producer is None:
                    await self._open(named)
                    fresh = True
                verdict, post = named.history.judge(first, records.count, digest)
                if verdict is Verdict.NEXT:
                    doubt = False  # the epoch was told all that is decided: nothing sent before it commits any more
                    return await self._sent_next(named, first, records, digest, sent)
                if not fresh:
                    # Another process may have gone on since, or the log has forgotten the producer: only who begins an epoch knows.
                    await self._leave(named)
                    continue
                return await self._answered(named, verdict, post, first, records)
            except TuttiError as error:
                doubt = doubt or isinstance(error, Unknown | Fenced)
                if not (doubt or isinstance(error, Aborted)):
                    raise
                # Whether it is committed is what the next epoch is told: it begins when all before it is decided.
                if not left or not isinstance(error, _AGAIN):
                    raise Unknown(f"whether the post is committed is not known: {error}") from error
                self.taken_back += isinstance(error, Fenced)
                LOG.info("producer %s begins again: %s: %s", named.name, type(error).__name__, error)
                await asyncio.sleep(delay * random.uniform(0.5, 1.5))
                delay = min(max(delay * 2, limits.FENCED_S_MIN), limits.FENCED_S_MAX)
        raise Unknown("whether the post is committed is not known: other processes took its producer again and again")

    async def _sent_next(self, named: Named, first: int, records: Records, digest: bytes, sent: Sent) -> Outcome:
        """Send what comes next. Unless it is known to be committed the producer is left: nothing may go by what it was."""
        producer, history = named.producer, named.history
        if producer is None:
            raise Unavailable(f"producer {named.name} is not open")
        try:
            receipt = await self._deliver(producer, records, history.progress(records.count, digest), sent)
        except BaseException:
            await asyncio.shield(self._leave(named))
            raise
        offset = known_offset(receipt.offset)
        history.committed(records.count, digest, -1 if offset is None else offset)
        return Outcome(offset)

    async def _answered(self, named: Named, verdict: Verdict, post: Post | None, first: int, records: Records) -> Outcome:
        """A post that is not the next one."""
        history, last = named.history, first + records.count - 1
        told = f"records {first} to {last}" if records.count > 1 else f"record {first}"
        if verdict is Verdict.GAP:
            raise _conflict(history, "gap", f"{told} would leave a gap: the log has this producer's records up to {history.last}")
        if verdict is Verdict.OVERLAP:
            raise _conflict(history, "overlap", f"of {told} the log has those up to {history.last} already: post the rest")
        if verdict is Verdict.DIFFERENT:
            raise _conflict(history, "different", f"the log has {told} already, with other content or posted in other parts")
        offset = None if post is None else known_offset(post.offset)
        if offset is None:
            search = partial(self._search, named.name, history, first, records)
            offset = await self._in_thread(self._searchers, search)
            if offset is not None and post is not None:
                history.found(post, offset)
        if offset is None and verdict is Verdict.OLD:
            raise _conflict(
                history,
                "unverified",
                f"the log has {told} already, too long ago to be looked up: whether with this content cannot be said",
            )
        self.repeated += 1
        return Outcome(offset, True)

    async def _open(self, named: Named) -> None:
        producer = await self._in_thread(self._openers, partial(self._make, named.name, limits.PRODUCER_BUFFER_BYTES))
        try:
            resumed = await self._in_thread(self._openers, partial(producer.resume, limits.CONNECT_S))
            named.history = _newer(named.history, History.decode(resumed.sequence, resumed.progress, named.name))
        except FormatError as error:
            self._openers.submit(_close, producer)
            raise Problem(409, str(error), conflict="foreign") from error
        except BaseException:
            self._openers.submit(_close, producer)
            raise
        named.producer = producer

    async def _leave(self, named: Named) -> None:
        producer, named.producer = named.producer, None
        if producer is not None:
            await self._in_thread(self._openers, partial(_close, producer))

    # Both.

    def _make(self, name: str | None, buffer_bytes: int) -> Producer:
        return Producer(
            self._url,
            name,
            buffer_bytes=buffer_bytes,
            on_full="raise",
            delivery_timeout=limits.DELIVERY_S,
            connect_timeout=limits.CONNECT_S,
        )

    async def _deliver(self, producer: Producer, records: Records, progress: bytes | None, sent: Sent) -> Receipt:
        """Send, and wait for the outcome.

        Raises:
            Unknown, Fenced: it was sent, and may be committed. Whatever ends a producer (its token was taken back, say) is told of
                what was on its way, too, and says nothing of that.
            TuttiError: it is in no log.
        """
        loop = asyncio.get_running_loop()
        outcome: asyncio.Future[Receipt] = loop.create_future()

        def told(error: TuttiError | None, receipt: Receipt) -> None:
            if error is not None and receipt.left and not isinstance(error, _DECIDED):
                error = Unknown(f"whether the post is committed is not known: {error}")
            with contextlib.suppress(RuntimeError):  # the loop has ended
                loop.call_soon_threadsafe(_settle, outcome, error, receipt)

        hand_over(producer, records, progress, told)
        sent()
        return await outcome

    async def _in_thread(self, pool: ThreadPoolExecutor, act: Callable[[], Result]) -> Result:
        return await asyncio.get_running_loop().run_in_executor(pool, act)

    def close(self) -> None:
        """Deliver what is on its way, for as long as a delivery takes, and end. Blocks."""
        producers = [named.producer for named in self._named.values() if named.producer is not None]
        if self._nameless is not None:
            producers.append(self._nameless)
        for producer in producers:
            self._openers.submit(_close, producer)
        self._openers.shutdown(wait=True)
        self._searchers.shutdown(wait=True)


def _newer(before: History, now: History) -> History:
    """What is remembered here, if nobody else has gone on since: it reaches back further than what the log tells.

    A producer that was forgotten in the log begins to count again: nothing that was remembered holds of it.
    """
    if (
        before.count == now.count
        and before.posts
        and before.last == now.last
        and now.posts
        and before.posts[-1].digest == now.posts[-1].digest
    ):
        return before
    return now


def hand_over(producer: Producer, records: Records, progress: bytes | None, told: OnDelivery) -> Receipt:
    """Send a post as a frame. A single record may share one with others: that is one too, and quicker."""
    if records.count == 1:
        value, key, time_us, headers = _alone(records.batch)
        return producer.send(records.topic, value, key, time_us, headers, progress, told)
    return producer.send_batch(records.topic, records.batch, progress, told)


def _alone(batch: pa.RecordBatch) -> tuple[Any, Any, Any, Any]:
    """Value, key, time and headers of a single record, as `send` takes them."""
    key, value, time_us, headers = (column[0] for column in batch.columns)
    pairs = [(one["key"], one["value"]) for one in headers.as_py() or ()]
    return value.as_py(), key.as_py(), time_us.value, pairs


def _settle(outcome: asyncio.Future[Receipt], error: TuttiError | None, receipt: Receipt) -> None:
    if outcome.done():
        return
    if error is None:
        outcome.set_result(receipt)
    else:
        outcome.set_exception(error)


def known_offset(offset: int | None) -> int | None:
    """The offset of a receipt; None where it is not known."""
    return None if offset is None or offset < 0 else offset


def _close(producer: Producer) -> None:
    with contextlib.suppress(TuttiError):
        producer.close()


def _conflict(history: History, kind: str, message: str) -> Problem:
    return Problem(
        409, f"{message}; the next is expected to begin with {history.expected}", conflict=kind, expected=history.expected
    )
