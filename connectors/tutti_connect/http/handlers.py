"""Request handlers: one method of `Service` for each operation in `operations.py`. Blocking work runs in threads."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, TypeVar
from urllib.parse import urlencode

import orjson
from starlette.requests import Request
from starlette.responses import Response

from tutti.errors import TuttiError, Unavailable
from tutti.reader import Reader
from tutti.reading.range_bounds import Bound
from tutti.sources.flight import FlightSource
from tutti_connect.http import limits
from tutti_connect.http.authorization import Authorizer
from tutti_connect.http.config import Http
from tutti_connect.http.group_health import Health
from tutti_connect.http.interface import docs_page
from tutti_connect.http.interface.openapi import description
from tutti_connect.http.interface.operations import METRICS
from tutti_connect.http.interface.problems import Problem, problem_of
from tutti_connect.http.interface.requests import Query, bound, flag, number, producer_and_sequence, single, topic_named, topics_of
from tutti_connect.http.metrics import Metrics
from tutti_connect.http.produce.bodies import ARROW, CONTENT_TYPES, JSON, NDJSON, Records, parse
from tutti_connect.http.produce.body_reader import BodyReader, BodyReservation
from tutti_connect.http.produce.producers import Outcome, Producers
from tutti_connect.http.produce.receipts import Receipts
from tutti_connect.http.produce.spool import STAYS_IN_SPOOL, Spool
from tutti_connect.http.read import record_pages
from tutti_connect.http.read.streams import Streams

Result = TypeVar("Result")


class Service:
    """State shared by all requests. Created in the event loop."""

    def __init__(self, config: Http, authorizer: Authorizer, reads: FlightSource, health: Health, spool: Spool | None) -> None:
        """Keep the parts that requests use. Open no connection."""
        self.name, self.authorizer, self.reads, self.health, self.spool = config.name, authorizer, reads, health, spool
        self._url = config.gateways
        self.producers = Producers(config.gateways, config.name, partial(record_pages.search, reads))
        self.body_reader, self.receipts, self.streams = BodyReader(), Receipts(time.monotonic), Streams()
        self.metrics = Metrics(self)
        self.posts = 0  # posts in progress
        self._reading = 0
        self._tasks: set[asyncio.Task[Any]] = set()
        self._parsers = ThreadPoolExecutor(limits.PARSERS, "parser")
        self._readers = ThreadPoolExecutor(limits.READERS, "reader")

    # Posts.

    async def post(self, request: Request, query: Query) -> Response:
        """Commit records."""
        topic = topic_named(request.path_params["topic"])
        named = producer_and_sequence(single(request.headers, "tutti-producer", "tutti-sequence"))
        self.authorizer.check_produce(request, topic, named and named[0])
        wait, plain = flag(query, "wait", True), flag(query, "plain", False)
        content_type = _content_type(request, plain)
        spool = self.spool if named is None and not wait else None
        if not self.health.ready and spool is None:
            raise Problem(503, self.health.message, committed="no")
        reservation = BodyReservation(self.body_reader, request.client.host if request.client else "")
        started = time.monotonic()
        try:
            # Read the body before the post counts towards `POSTS_MAX`, so that slow callers do not use up this limit.
            body = await self.body_reader.body(request, reservation)
            with self._in_progress():
                records = await self._parsed(body, topic, content_type, plain, reservation)
                del body
                if wait:
                    return _committed(records, await self._commit(records, named, _ignore), named)
                if spool is not None:
                    return await self._spooled(spool, records, reservation)
                return await self._answer_when_sent(records, named, reservation)
        except BaseException:
            reservation.release()
            raise
        finally:
            if wait:
                reservation.release()
                self.metrics.posts.observe(time.monotonic() - started)

    @contextlib.contextmanager
    def _in_progress(self) -> Iterator[None]:
        """Count a post with a complete body.

        Raises:
            Problem: 429: too many posts are in progress.
        """
        if self.posts >= limits.POSTS_MAX:
            raise Problem(429, f"{self.posts} posts are in progress: retry later", committed="no")
        self.posts += 1
        try:
            yield
        finally:
            self.posts -= 1

    async def _parsed(self, body: bytes, topic: str, content_type: str, plain: bool, reservation: BodyReservation) -> Records:
        if len(body) > limits.LOOP_BYTES_MAX:
            self.health.busy = True
            records = await self._in_thread(self._parsers, partial(parse, topic, content_type, body, plain))
        else:
            records = parse(topic, content_type, body, plain)
        reservation.grow(records.batch.nbytes)
        return records

    async def _commit(self, records: Records, named: tuple[str, int] | None, sent: Callable[[], None]) -> Outcome:
        try:
            if named is None:
                outcome = await self.producers.post(records, sent)
            else:
                outcome = await self.producers.post_once(*named, records, sent)
        except Unavailable as error:
            # "no" is certain, because the error after a send would be `Unknown`
            raise Problem(503, str(error), committed="no") from error
        if outcome.offset is not None:
            self.reads.note_frontier(outcome.offset + records.count)  # makes later reads at this process include the records
        if not outcome.repeated:
            self.metrics.records.inc(records.count)
        return outcome

    async def _answer_when_sent(self, records: Records, named: tuple[str, int] | None, reservation: BodyReservation) -> Response:
        """Answer a post with wait=false as soon as its records are sent, or with its outcome if that is known before."""
        name = self.receipts.open()
        sent: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def on_sent() -> None:
            if not sent.done():
                sent.set_result(None)

        task = asyncio.create_task(self._commit(records, named, on_sent))
        self._tasks.add(task)

        def on_outcome(done: asyncio.Task[Outcome]) -> None:
            self._tasks.discard(done)
            reservation.release()
            self.receipts.resolve(name, _receipt_fields(records, done, named))

        task.add_done_callback(on_outcome)
        either: set[asyncio.Future[Any]] = {task, sent}
        await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            return _committed(records, task.result(), named)
        fields = {"id": name, "topic": records.topic, "count": records.count}
        return _json(fields, 202, {"location": f"/v1/receipts/{name}"})

    async def _spooled(self, spool: Spool, records: Records, reservation: BodyReservation) -> Response:
        """Answer a post with wait=false when its records are durable in the spool."""
        name = self.receipts.open_spooled()

        def on_outcome(outcome: Outcome | TuttiError) -> None:
            if isinstance(outcome, Outcome):
                self.metrics.records.inc(records.count)
                self.receipts.resolve(name, {"state": "committed", **_fields(records, outcome, None)})
            elif not isinstance(outcome, STAYS_IN_SPOOL):
                problem = problem_of(outcome)
                self.receipts.resolve(name, {"state": "failed", "status": int(problem.status), **orjson.loads(problem.body())})

        try:
            await spool.post(records, on_outcome)
        except BaseException:
            self.receipts.drop(name)  # no caller knows the receipt's id
            raise
        finally:
            reservation.release()
        fields = {"id": name, "topic": records.topic, "count": records.count, "spooled": True}
        return _json(fields, 202, {"location": f"/v1/receipts/{name}"})

    async def receipt(self, request: Request, _query: Query) -> Response:
        """Return the outcome of a post."""
        self.authorizer.authenticate(request)
        return _json(self.receipts.get(request.path_params["id"]))

    async def producer(self, request: Request, _query: Query) -> Response:
        """Return the expected sequence of a producer's next post."""
        name = request.path_params["producer"]
        producer_and_sequence({"tutti-producer": name, "tutti-sequence": "1"})
        self.authorizer.check_resume(request, name)
        return _json({"producer": name, "expected": await self.producers.expected(name)})

    # Reads.

    async def records(self, request: Request, query: Query) -> Response:
        """Return a page of records."""
        topics = topics_of(query)
        self.authorizer.check_read(request, topics)
        form = _form(request.headers.get("accept", "*/*"))
        start: Bound = "earliest" if "start" not in query else _required_bound(query, "start")
        limit = number(query, "limit", limits.PAGE_RECORDS, limits.PAGE_RECORDS_MAX)
        page_query = record_pages.PageQuery(start, bound(query, "end"), topics, _key(query), limit, form)
        found = await self._read(partial(record_pages.page, self.reads, page_query))
        headers = {"cache-control": "no-store"}
        if found.next is not None:
            more = dict(query) | {"start": str(found.next), "end": str(found.end)}
            headers |= {"tutti-next": str(found.next), "link": f'</v1/records?{urlencode(more)}>; rel="next"'}
        return Response(found.body, 200, headers, ARROW if form == "arrow" else NDJSON)

    async def stream(self, request: Request, query: Query) -> Response:
        """Stream records as they commit."""
        topics = topics_of(query)
        still_allowed = self.authorizer.check_read(request, topics)
        self.health.busy = True
        last = request.headers.get("last-event-id")
        start: Bound = "latest" if "start" not in query else _required_bound(query, "start")
        if last:
            if not ((last.isascii() and last.isdigit()) or last == "-1") or len(last) > 18:
                raise Problem(400, f"Last-Event-ID is {last[:40]!r}: give the offset of the last event")
            start = int(last) + 1
        make = partial(Reader, self._url, topics, start, follow=True, connect_timeout=limits.READ_S)
        return await self.streams.begin(make, _key(query), still_allowed)

    async def topics(self, request: Request, _query: Query) -> Response:
        """List the topics that the caller may read."""
        may_read = self.authorizer.authenticate(request).may_read
        return Response(await self._read(partial(record_pages.topics, self.reads, may_read)), 200, media_type=JSON)

    async def _read(self, call: Callable[[], Result]) -> Result:
        if self._reading >= limits.READERS + limits.READS_WAITING_MAX:
            raise Problem(429, f"{self._reading} reads are in progress: retry later")
        self._reading += 1
        self.health.busy = True
        try:
            return await self._in_thread(self._readers, call)
        finally:
            self._reading -= 1

    # Description, health and metrics of the process.

    async def openapi(self, _request: Request, _query: Query) -> Response:
        """Return the OpenAPI description."""
        return Response(description(), 200, media_type=JSON)

    async def docs(self, _request: Request, _query: Query) -> Response:
        """Return the description as an HTML page."""
        return Response(docs_page.html(), 200, docs_page.HEADERS, "text/html")

    async def healthz(self, _request: Request, _query: Query) -> Response:
        """Report that the process answers."""
        return _json({"status": "ok"})

    async def readyz(self, _request: Request, _query: Query) -> Response:
        """Report whether posts can be committed."""
        fields = {"ready": self.health.ready, "state": self.health.state, "message": self.health.message}
        return _json(fields, 200 if self.health.ready else 503)

    async def metrics_page(self, request: Request, _query: Query) -> Response:
        """Return the Prometheus metrics."""
        self.authorizer.authenticate(request)
        return Response(self.metrics.page(), 200, media_type=METRICS)

    # Shutdown.

    async def _in_thread(self, pool: ThreadPoolExecutor, call: Callable[[], Result]) -> Result:
        return await asyncio.get_running_loop().run_in_executor(pool, call)

    def end(self) -> None:
        """End the streams, but let posts in progress continue."""
        self.streams.end()

    async def shut_down(self) -> None:
        """Wait up to `limits.STOP_S` for posts in progress, and then close producers, spool and threads."""
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=limits.STOP_S)
        await asyncio.to_thread(self.producers.close)
        if self.spool is not None:
            await asyncio.to_thread(self.spool.close)
        for pool in (self._parsers, self._readers):
            pool.shutdown(wait=False, cancel_futures=True)


def _ignore() -> None:
    """Ignore the notification."""


def _content_type(request: Request, plain: bool) -> str:
    """Return the content type of the body.

    Raises:
        Problem: 415: the content type is not supported.
    """
    found = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if found not in CONTENT_TYPES:
        raise Problem(415, f"the content type {found[:80]!r} is not supported: use {', '.join(sorted(CONTENT_TYPES))}")
    coding = request.headers.get("content-encoding", "identity").lower()
    if coding != "identity":
        raise Problem(415, f"the content encoding {coding[:40]!r} is not supported: send the body without one")
    if plain and found != NDJSON:
        raise Problem(400, f"plain=true needs {NDJSON}: each line is a value")
    return found


def _form(accept: str) -> record_pages.Form:
    """Return the format of a page.

    Raises:
        Problem: 406: the header Accept contains no supported format.
    """
    accepted = [one.partition(";")[0].strip().lower() for one in accept.split(",")]
    if ARROW in accepted:
        return "arrow"
    if {NDJSON, JSON, "*/*", "application/*", ""} & set(accepted):
        return "json"
    raise Problem(406, f"Accept is {accept[:80]!r}: supported are {NDJSON} and {ARROW}")


def _required_bound(query: Query, name: str) -> Bound:
    found = bound(query, name)
    return "earliest" if found is None else found


def _key(query: Query) -> bytes | None:
    return query["key"].encode() if "key" in query else None


def _fields(records: Records, outcome: Outcome, named: tuple[str, int] | None) -> dict[str, Any]:
    fields: dict[str, Any] = {"topic": records.topic, "offset": outcome.offset, "count": records.count}
    if named is not None:
        fields |= {"producer": named[0], "sequence": named[1], "repeated": outcome.repeated}
    return fields


def _committed(records: Records, outcome: Outcome, named: tuple[str, int] | None) -> Response:
    return _json(_fields(records, outcome, named))


def _receipt_fields(records: Records, done: asyncio.Task[Outcome], named: tuple[str, int] | None) -> dict[str, Any]:
    """Return the outcome of a post with wait=false, as fields of its receipt."""
    if done.cancelled():
        return {"state": "failed", "status": 503, "message": "the process ended before the outcome", "committed": "unknown"}
    error = done.exception()
    if error is None:
        return {"state": "committed", **_fields(records, done.result(), named)}
    problem = (
        error if isinstance(error, Problem) else problem_of(error) if isinstance(error, TuttiError) else Problem(500, str(error))
    )
    return {"state": "failed", "status": int(problem.status), **orjson.loads(problem.body())}


def _json(value: Mapping[str, Any], status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    return Response(orjson.dumps(value), status, headers, JSON)
