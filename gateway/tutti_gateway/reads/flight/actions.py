"""The Flight actions: small requests about the log, with JSON bodies and answers (docs/reference/reads.md)."""

from __future__ import annotations

import base64
import time
from collections.abc import Callable
from typing import NamedTuple, TypeVar

import msgspec

from tutti.data.gateway_states import CUT_OFF
from tutti.data.histograms import LATENCY_BOUNDS_US, Histogram
from tutti.errors import Refused, Unavailable
from tutti.log.read.micro_batch_ends import bytes_end, tick_end
from tutti.log.read.reader import DecidedEnd
from tutti.security.tokens import FULL_ACCESS, Access
from tutti_gateway.core import limits
from tutti_gateway.reads.common.gateway_link import GatewayLink
from tutti_gateway.reads.flight.plans import RangeSplitter
from tutti_gateway.reads.flight.streams import refuse_if_stalled
from tutti_gateway.reads.logs.frontier_watch import FrontierWatch
from tutti_gateway.reads.logs.query_reports import QueryReports
from tutti_gateway.reads.logs.reader_positions import ReaderPositions
from tutti_gateway.reads.logs.served_logs import ServedLogs, topic_line
from tutti_gateway.reads.protocol.flight_errors import ReadError, converting_corruption
from tutti_gateway.reads.protocol.tickets import (
    BytesEndRequest,
    Command,
    EmptyRequest,
    FrontierRequest,
    OffsetForTimeRequest,
    PassedRequest,
    ReportRequest,
    SaveOffsetRequest,
    TickEndRequest,
    TicksRequest,
    decode,
    encode,
)

IsCancelled = Callable[[], bool]
Linearizable = TypeVar("Linearizable", FrontierRequest, OffsetForTimeRequest)


class Action(NamedTuple):
    """An action: a description of its answer, and the method that computes it."""

    description: str
    method: str


ACTIONS: dict[str, Action] = {
    "frontier": Action("the frontier of the log; with `beyond` waits until the frontier is above it", "frontier"),
    "offset_for_time": Action("offset of the first record at or after a time", "offset_for_time"),
    "ticks": Action("the ticks of a range: number, time, offset", "ticks"),
    "tick_end": Action("end offset of a micro-batch that ends at a tick", "tick_end"),
    "bytes_end": Action("end offset of a micro-batch of a given size in bytes", "bytes_end"),
    "plan": Action("a range split into parts for parallel reads", "plan"),
    "lanes": Action("the lanes of unordered records and their frontiers", "lanes"),
    "topics": Action("the topics with their counts and first and last records", "topics"),
    "producers": Action("the producers with epoch, sequence and progress", "producers"),
    "readers": Action("the committed offsets of named readers", "readers"),
    "save_offset": Action("commit the offset of a named reader", "save_offset"),
    "passed": Action("the committed offset of a named reader, once it reaches an offset", "passed"),
    "report": Action("record the progress of a query", "report"),
    "queries": Action("the queries that report to this gateway", "queries"),
}
_MAY_WAIT = frozenset({"frontier", "passed"})  # long polls, whose durations are not part of the latency histogram


class Actions:
    """Answers actions.

    Attributes:
        act_us: latency of actions that do not wait; concurrent updates may lose a count.
    """

    def __init__(
        self,
        served_logs: ServedLogs,
        plans: RangeSplitter,
        gateway: GatewayLink,
        watch: FrontierWatch[DecidedEnd],
        queries: QueryReports,
    ) -> None:
        """Create the service.

        Args:
            served_logs: finds the log of a request.
            plans: splits a range into parts that can be read in parallel.
            gateway: link to the gateway process, for requests that only this process can serve.
            watch: waits until the frontier of the ordered log moves.
            queries: stores the reports of queries.
        """
        self._served_logs = served_logs
        ordered = served_logs.find("")
        self._reader = ordered.reader
        self._ranges = ordered.ranges
        self._plans = plans
        self._gateway = gateway
        self._watch = watch
        self._positions = ReaderPositions(ordered.reader)
        self._queries = queries
        self.act_us = Histogram(LATENCY_BOUNDS_US)

    def act(self, kind: str, body: bytes, is_cancelled: IsCancelled, access: Access = FULL_ACCESS) -> bytes:
        """Return the answer to one action, with only the topics that the caller may read.

        Raises:
            ReadError: the action does not exist, or its body is wrong.
        """
        action = ACTIONS.get(kind)
        if action is None:
            raise ReadError(
                "unknown_action", f"there is no action {kind[:100]!r}; the actions are {', '.join(ACTIONS)}", name=kind[:100]
            )
        began = time.monotonic_ns()
        with converting_corruption(self._gateway.report_corruption, ""):
            # The method name comes from `ACTIONS` and never from the caller, so a request cannot call any other method.
            answer = getattr(self, action.method)(body, is_cancelled)
        if kind not in _MAY_WAIT:
            self.act_us.add((time.monotonic_ns() - began) // 1000)
        if kind == "topics" and not access.may_read_all:
            answer = [line for line in answer if access.may_read(line["name"])]
        return encode(answer)

    def frontier(self, body: bytes, is_cancelled: IsCancelled) -> object:
        """Return the frontier of a log."""
        request = decode(FrontierRequest, body, "the body of frontier")
        served = self._served_logs.find(request.lane)
        confirmed = {}
        if request.linearizable:  # even without a confirmation, this action answers, and reports `confirmed` as False
            served.ranges.check_log(request)
            confirmed["confirmed"] = served.ranges.confirmed()
        frontier = served.ranges.frontier(_without_linearizable(request), is_cancelled)
        if request.beyond is not None and frontier.offset <= request.beyond:
            frontier = served.watch.wait(request.beyond, request.timeout_ms * 1000, is_cancelled)
            if frontier.offset <= request.beyond:
                # The frontier of a stalled gateway may never move, so the caller must use another gateway.
                refuse_if_stalled(served)
        gateways, silent = self._gateway.gateways()
        return {
            "log": served.reader.log,
            **served.about,
            "start": served.reader.start,
            "frontier": frontier.offset,
            "position": frontier.position,
            "time_us": frontier.time_us,
            "tick": frontier.tick,
            "state": served.state(),
            "gateways": gateways,
            "silent": silent,
            **confirmed,
        }

    def offset_for_time(self, body: bytes, is_cancelled: IsCancelled) -> object:
        """Return the offset of the first record at or after a time."""
        request = decode(OffsetForTimeRequest, body, "the body of offset_for_time")
        served = self._served_logs.find(request.lane)
        frontier = served.ranges.frontier(_without_linearizable(request), is_cancelled)
        with converting_corruption(self._gateway.report_corruption, request.lane):
            found = served.reader.offset_for_time(request.time_us)
            # Only the answer that no such record exists needs a confirmed frontier, because a lagging log could lack the record.
            if request.linearizable and found >= frontier.offset:
                served.ranges.frontier(request, is_cancelled)
                found = served.reader.offset_for_time(request.time_us)
            return {"offset": found}

    def ticks(self, body: bytes, is_cancelled: IsCancelled) -> object:
        """Return the ticks of a range."""
        request = decode(TicksRequest, body, "the body of ticks")
        frontier = self._ranges.frontier(request, is_cancelled)
        start, end = self._ranges.offsets(request.start, request.end, frontier)
        # A caller that needs more ticks sends another request, which starts at the last tick of this answer.
        found = [tick for tick in self._reader.ticks(start, end) if tick[0] >= request.from_tick]
        return found[: limits.TICKS_AN_ANSWER_MAX]

    def tick_end(self, body: bytes, is_cancelled: IsCancelled) -> object:
        """Return the end offset of a micro-batch that ends at a tick."""
        request = decode(TickEndRequest, body, "the body of tick_end")
        frontier = self._ranges.frontier(request, is_cancelled)
        start, end = self._ranges.offsets(request.start, request.end, frontier)
        # A limit above the end of the range is lowered to that end, because a micro-batch never leaves its range.
        return {"offset": tick_end(self._reader.ticks, start, min(request.limit, end), end, request.every)}

    def bytes_end(self, body: bytes, is_cancelled: IsCancelled) -> object:
        """Return the end offset of a micro-batch of a given size."""
        request = decode(BytesEndRequest, body, "the body of bytes_end")
        frontier = self._ranges.frontier(request, is_cancelled)
        start, end = self._ranges.offsets(request.start, request.end, frontier)
        return {"offset": bytes_end(self._reader.rows(start, end, request.topics), start, end, request.bytes)}

    def plan(self, body: bytes, is_cancelled: IsCancelled) -> object:
        """Return a range split into parts."""
        return self._plans.plan(decode(Command, body, "the body of plan"), is_cancelled)

    def lanes(self, body: bytes, is_cancelled: IsCancelled) -> object:
        """Return the lanes of unordered records and their frontiers."""
        # The frontier is read only to check the caller's log and `seen`, because each lane has a frontier of its own.
        self._ranges.frontier(decode(EmptyRequest, body, "the body of lanes"), is_cancelled)
        refuse_if_stalled(self._served_logs.find(""))  # readers of all lanes poll this action, and must leave a stalled gateway
        return self._served_logs.lanes()

    def topics(self, body: bytes, is_cancelled: IsCancelled) -> object:
        """Return the topics with their counts."""
        self._ranges.frontier(decode(EmptyRequest, body, "the body of topics"), is_cancelled)
        return [topic_line(topic) for topic in self._reader.topics()]

    def producers(self, body: bytes, is_cancelled: IsCancelled) -> object:
        """Return the producers with epoch, sequence and progress."""
        self._ranges.frontier(decode(EmptyRequest, body, "the body of producers"), is_cancelled)
        return [
            {
                "name": producer.name,
                "epoch": producer.epoch,
                "sequence": producer.sequence,
                "progress": base64.b64encode(producer.progress).decode(),
                "closed": producer.closed,
                "last_seen_us": producer.last_seen,
            }
            for producer in self._reader.state().producers.values()
        ]

    def readers(self, body: bytes, is_cancelled: IsCancelled) -> object:
        """Return the committed offsets of named readers."""
        self._ranges.frontier(decode(EmptyRequest, body, "the body of readers"), is_cancelled)
        return self._reader.state().readers

    def save_offset(self, body: bytes, is_cancelled: IsCancelled) -> object:
        """Commit the offset of a named reader, through the gateway."""
        request = decode(SaveOffsetRequest, body, "the body of save_offset")
        frontier = self._ranges.frontier(request, is_cancelled)
        # An offset above the frontier would mark records as processed that do not exist yet.
        self._ranges.check_not_beyond(f"reader {request.reader!r} cannot commit offset {request.offset}", request.offset, frontier)
        self._gateway.save_offset(request.reader, request.offset, request.back, is_cancelled)
        return {"reader": request.reader, "offset": request.offset}

    def passed(self, body: bytes, is_cancelled: IsCancelled) -> object:
        """Return the committed offset of a named reader when the offset is at least `offset`, or after the timeout.

        The result is None if the reader has never committed an offset.
        """
        request = decode(PassedRequest, body, "the body of passed")
        served = self._served_logs.find("")
        self._ranges.frontier(request, is_cancelled)
        found = self._positions.committed(request.reader).offset
        if found < request.offset and request.timeout_ms:
            refuse_if_stalled(served)
            # A gateway without a majority receives no commits, so a wait here would end only at its timeout.
            if served.state() in CUT_OFF and self._gateway.peers():
                raise ReadError("unavailable", f"this gateway is {served.state()} and receives no new records: ask another gateway")
            wait_us = request.timeout_ms * 1000
            # A committed OFFSETS frame does not move the frontier of records, so `watch.wait` would not notice the commit.
            found = self._watch.wait_on(
                lambda: self._positions.committed(request.reader), request.offset - 1, wait_us, is_cancelled
            ).offset
        return {"reader": request.reader, "offset": None if found < 0 else found}

    def report(self, body: bytes, is_cancelled: IsCancelled) -> object:
        """Record the progress of a query, and commit it to the log if the query has a name and has moved.

        A failed commit does not fail the action: the answer, and later the action `queries`, report the failure as `trouble`.
        """
        request = decode(ReportRequest, body, "the body of report")
        frontier = self._ranges.frontier(request, is_cancelled)
        query = f"query {request.name or request.label!r}"
        self._ranges.check_not_beyond(f"{query} reports offset {request.offset} as processed", request.offset, frontier)
        # The report is recorded before the commit, so that `queries` lists the query even if its commit fails.
        self._queries.record(request, time.time_ns() // 1000)
        trouble = ""
        # An unchanged offset needs no commit.
        if request.name and self._positions.committed(request.name).offset != request.offset:
            try:
                self._gateway.save_offset(request.name, request.offset, request.back, is_cancelled)
            except (Refused, Unavailable) as error:
                trouble = str(error)
        self._queries.trouble(request.run, trouble)
        return {"trouble": trouble}

    def queries(self, body: bytes, is_cancelled: IsCancelled) -> object:
        """Return the queries that report to this gateway."""
        frontier = self._ranges.frontier(decode(EmptyRequest, body, "the body of queries"), is_cancelled)
        return self._queries.lines(frontier.offset, time.time_ns() // 1000)


def _without_linearizable(request: Linearizable) -> Linearizable:
    """Return the request without the field `linearizable`, which the action handles itself."""
    return msgspec.structs.replace(request, linearizable=False)
