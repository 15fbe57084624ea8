"""The Flight actions: small requests about the log, with JSON bodies and answers (docs/reference/reads.md)."""

from __future__ import annotations

import base64
import time
from collections.abc import Callable
from typing import NamedTuple, TypeVar

import msgspec

from tutti.data.histograms import LATENCY_BOUNDS_US, Histogram
from tutti.errors import Refused, Unavailable
from tutti.log.read.batch_limits import bytes_end, tick_end
from tutti.log.read.reader import Frontier
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

GivenUp = Callable[[], bool]
Linearizable = TypeVar("Linearizable", FrontierRequest, OffsetForTimeRequest)


class Action(NamedTuple):
    """An action: a description of its answer, and the method that computes it."""

    sentence: str
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
_MAY_WAIT = frozenset({"frontier", "passed"})  # their duration includes waiting, so it is not measured
_CUT_OFF = frozenset({"minority", "halted"})


class Actions:
    """Answers actions.

    Attributes:
        act_us: latency of actions that do not wait; concurrent updates may lose a count.
    """

    def __init__(
        self,
        shelf: ServedLogs,
        plans: RangeSplitter,
        gateway: GatewayLink,
        watch: FrontierWatch[Frontier],
        queries: QueryReports,
    ) -> None:
        """Create the answering service.

        Args:
            shelf: the served logs.
            plans: splits ranges.
            gateway: the gateway, for requests that only it can serve.
            watch: watch of the frontier.
            queries: stores the reports of queries.
        """
        self._shelf = shelf
        ordered = shelf.of("")
        self._reader = ordered.reader
        self._ranges = ordered.ranges
        self._plans = plans
        self._gateway = gateway
        self._watch = watch
        self._positions = ReaderPositions(ordered.reader)
        self._queries = queries
        self.act_us = Histogram(LATENCY_BOUNDS_US)

    def act(self, kind: str, body: bytes, given_up: GivenUp, access: Access = FULL_ACCESS) -> bytes:
        """Return the answer to one action, with only the topics that the caller may read.

        Raises:
            Fault: the action does not exist, or its body is wrong.
        """
        action = ACTIONS.get(kind)
        if action is None:
            raise ReadError(
                "unknown_action", f"there is no action {kind[:100]!r}; the actions are {', '.join(ACTIONS)}", name=kind[:100]
            )
        began = time.monotonic_ns()
        with converting_corruption(self._gateway.elsewhere, ""):
            answer = getattr(self, action.method)(body, given_up)
        if kind not in _MAY_WAIT:
            self.act_us.add((time.monotonic_ns() - began) // 1000)
        if kind == "topics" and not access.may_read_all:
            answer = [line for line in answer if access.may_read(line["name"])]
        return encode(answer)

    def frontier(self, body: bytes, given_up: GivenUp) -> object:
        """Return the frontier of a log."""
        asked = decode(FrontierRequest, body, "the body of frontier")
        served = self._shelf.of(asked.lane)
        confirmed = {}
        if asked.linearizable:
            served.ranges.check_log(asked)
            confirmed["confirmed"] = served.ranges.confirmed()
        frontier = served.ranges.frontier(_without_linearizable(asked), given_up)
        if asked.beyond is not None and frontier.offset <= asked.beyond:
            frontier = served.watch.wait(asked.beyond, asked.timeout_ms * 1000, given_up)
            if frontier.offset <= asked.beyond:
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

    def offset_for_time(self, body: bytes, given_up: GivenUp) -> object:
        """Return the offset of the first record at or after a time."""
        asked = decode(OffsetForTimeRequest, body, "the body of offset_for_time")
        served = self._shelf.of(asked.lane)
        frontier = served.ranges.frontier(_without_linearizable(asked), given_up)
        with converting_corruption(self._gateway.elsewhere, asked.lane):
            found = served.reader.offset_for_time(asked.time_us)
            if asked.linearizable and found >= frontier.offset:  # a record that exists is the first one on any gateway
                served.ranges.frontier(asked, given_up)
                found = served.reader.offset_for_time(asked.time_us)
            return {"offset": found}

    def ticks(self, body: bytes, given_up: GivenUp) -> object:
        """Return the ticks of a range."""
        asked = decode(TicksRequest, body, "the body of ticks")
        frontier = self._ranges.frontier(asked, given_up)
        start, end = self._ranges.offsets(asked.start, asked.end, frontier)
        found = [tick for tick in self._reader.ticks(start, end) if tick[0] >= asked.from_tick]
        return found[: limits.TICKS_AN_ANSWER_MAX]

    def tick_end(self, body: bytes, given_up: GivenUp) -> object:
        """Return the end offset of a micro-batch that ends at a tick."""
        asked = decode(TickEndRequest, body, "the body of tick_end")
        frontier = self._ranges.frontier(asked, given_up)
        start, end = self._ranges.offsets(asked.start, asked.end, frontier)
        return {"offset": tick_end(self._reader.ticks, start, min(asked.limit, end), end, asked.every)}

    def bytes_end(self, body: bytes, given_up: GivenUp) -> object:
        """Return the end offset of a micro-batch of a given size."""
        asked = decode(BytesEndRequest, body, "the body of bytes_end")
        frontier = self._ranges.frontier(asked, given_up)
        start, end = self._ranges.offsets(asked.start, asked.end, frontier)
        return {"offset": bytes_end(self._reader.rows(start, end, asked.topics), start, end, asked.bytes)}

    def plan(self, body: bytes, given_up: GivenUp) -> object:
        """Return a range split into parts."""
        return self._plans.plan(decode(Command, body, "the body of plan"), given_up)

    def lanes(self, body: bytes, given_up: GivenUp) -> object:
        """Return the lanes of unordered records and their frontiers."""
        self._ranges.frontier(decode(EmptyRequest, body, "the body of lanes"), given_up)
        refuse_if_stalled(self._shelf.of(""))  # a follower repeats this request, so it must notice a stalled gateway
        return self._shelf.lanes()

    def topics(self, body: bytes, given_up: GivenUp) -> object:
        """Return the topics with their counts."""
        self._ranges.frontier(decode(EmptyRequest, body, "the body of topics"), given_up)
        return [topic_line(topic) for topic in self._reader.topics()]

    def producers(self, body: bytes, given_up: GivenUp) -> object:
        """Return the producers with epoch, sequence and progress."""
        self._ranges.frontier(decode(EmptyRequest, body, "the body of producers"), given_up)
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

    def readers(self, body: bytes, given_up: GivenUp) -> object:
        """Return the committed offsets of named readers."""
        self._ranges.frontier(decode(EmptyRequest, body, "the body of readers"), given_up)
        return self._reader.state().readers

    def save_offset(self, body: bytes, given_up: GivenUp) -> object:
        """Commit the offset of a named reader, through the gateway."""
        asked = decode(SaveOffsetRequest, body, "the body of save_offset")
        frontier = self._ranges.frontier(asked, given_up)
        self._ranges.check_not_beyond(f"reader {asked.reader!r} cannot commit offset {asked.offset}", asked.offset, frontier)
        self._gateway.save_offset(asked.reader, asked.offset, asked.back, given_up)
        return {"reader": asked.reader, "offset": asked.offset}

    def passed(self, body: bytes, given_up: GivenUp) -> object:
        """Return the committed offset of a named reader (None if it has none), once it is at least `offset`, or the timeout
        ends.
        """
        asked = decode(PassedRequest, body, "the body of passed")
        served = self._shelf.of("")
        self._ranges.frontier(asked, given_up)
        found = self._positions.of(asked.reader).offset
        if found < asked.offset and asked.timeout_ms:
            refuse_if_stalled(served)
            if served.state() in _CUT_OFF and self._gateway.others():
                raise ReadError("unavailable", f"this gateway is {served.state()} and receives no new records: ask another gateway")
            wait_us = asked.timeout_ms * 1000
            found = self._watch.wait_beside(lambda: self._positions.of(asked.reader), asked.offset - 1, wait_us, given_up).offset
        return {"reader": asked.reader, "offset": None if found < 0 else found}

    def report(self, body: bytes, given_up: GivenUp) -> object:
        """Record the progress of a query, and commit it to the log if the query has a name and has moved.

        A failed commit is not an error of the action. The answer and the action `queries` contain it as `trouble`.
        """
        asked = decode(ReportRequest, body, "the body of report")
        frontier = self._ranges.frontier(asked, given_up)
        who = f"query {asked.name or asked.label!r}"
        self._ranges.check_not_beyond(f"{who} reports offset {asked.offset} as processed", asked.offset, frontier)
        self._queries.note(asked, time.time_ns() // 1000)
        trouble = ""
        if asked.name and self._positions.of(asked.name).offset != asked.offset:
            try:
                self._gateway.save_offset(asked.name, asked.offset, asked.back, given_up)
            except (Refused, Unavailable) as error:
                trouble = str(error)
        self._queries.trouble(asked.run, trouble)
        return {"trouble": trouble}

    def queries(self, body: bytes, given_up: GivenUp) -> object:
        """Return the queries that report to this gateway."""
        frontier = self._ranges.frontier(decode(EmptyRequest, body, "the body of queries"), given_up)
        return self._queries.lines(frontier.offset, time.time_ns() // 1000)


def _without_linearizable(asked: Linearizable) -> Linearizable:
    """Return the request without its wish for a linearizable answer, which the action handles itself."""
    return msgspec.structs.replace(asked, linearizable=False)
