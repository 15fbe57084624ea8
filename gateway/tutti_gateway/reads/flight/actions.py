"""The actions: small questions about the log, JSON in and JSON out (docs/reference/reads.md)."""

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
from tutti.security.tokens import ANYBODY, Access
from tutti_gateway.core import limits
from tutti_gateway.reads.common.gateway_link import GatewayLink
from tutti_gateway.reads.flight.plans import Plans
from tutti_gateway.reads.flight.streams import not_silent
from tutti_gateway.reads.logs.frontier_watch import FrontierWatch
from tutti_gateway.reads.logs.query_reports import Queries
from tutti_gateway.reads.logs.reader_positions import Positions
from tutti_gateway.reads.logs.served_logs import Shelf, topic_line
from tutti_gateway.reads.protocol.flight_errors import Fault, sent_on
from tutti_gateway.reads.protocol.tickets import (
    BytesEndAsk,
    Command,
    FrontierAsk,
    NothingAsked,
    PassedAsk,
    ReportAsk,
    SaveAsk,
    TickEndAsk,
    TicksAsk,
    TimeAsk,
    decode,
    encode,
)

GivenUp = Callable[[], bool]
Linearizable = TypeVar("Linearizable", FrontierAsk, TimeAsk)


class Action(NamedTuple):
    """An action: what it answers, in one sentence, and the method that does."""

    sentence: str
    method: str


ACTIONS: dict[str, Action] = {
    "frontier": Action("how far the log is committed; with `beyond` waits until it is further", "frontier"),
    "offset_for_time": Action("offset of the first record at or after a time", "offset_for_time"),
    "ticks": Action("the ticks of a range: number, time, offset", "ticks"),
    "tick_end": Action("where a batch that ends at a tick ends", "tick_end"),
    "bytes_end": Action("where a batch of so many bytes ends", "bytes_end"),
    "plan": Action("a range cut into parts that can be read side by side", "plan"),
    "lanes": Action("the lanes of unordered sends and how far they are", "lanes"),
    "topics": Action("the topics and what they hold", "topics"),
    "producers": Action("the producers and how far they are", "producers"),
    "readers": Action("what named readers saved", "readers"),
    "save_offset": Action("save a named reader's offset", "save_offset"),
    "passed": Action("what a named reader saved, once it has passed an offset", "passed"),
    "report": Action("a query tells how far it is", "report"),
    "queries": Action("the queries that told this gateway how far they are", "queries"),
}
_MAY_WAIT = frozenset({"frontier", "passed"})  # for news: how long that took tells nothing of this process
_CUT_OFF = frozenset({"minority", "halted"})


class Actions:
    """Answers actions.

    Attributes:
        act_us: how long those took that wait for nothing; an increment may be lost when two end at once.
    """

    def __init__(
        self,
        shelf: Shelf,
        plans: Plans,
        gateway: GatewayLink,
        watch: FrontierWatch[Frontier],
        queries: Queries,
    ) -> None:
        """Answer for the logs of `shelf`, of which `watch` tells that they moved; what only `gateway` can do is asked of it.

        What queries tell is kept in `queries`.
        """
        self._shelf = shelf
        ordered = shelf.of("")
        self._reader = ordered.reader
        self._ranges = ordered.ranges
        self._plans = plans
        self._gateway = gateway
        self._watch = watch
        self._positions = Positions(ordered.reader)
        self._queries = queries
        self.act_us = Histogram(LATENCY_BOUNDS_US)

    def act(self, kind: str, body: bytes, given_up: GivenUp, access: Access = ANYBODY) -> bytes:
        """The answer to one action, which who asks may ask; of topics they are told those alone that they may read.

        Raises:
            Fault: the action does not exist, or its body asks for what is not there.
        """
        action = ACTIONS.get(kind)
        if action is None:
            raise Fault("unknown_action", f"there is no action {kind[:100]!r}; there are {', '.join(ACTIONS)}", name=kind[:100])
        began = time.monotonic_ns()
        with sent_on(self._gateway.elsewhere, ""):
            answer = getattr(self, action.method)(body, given_up)
        if kind not in _MAY_WAIT:
            self.act_us.add((time.monotonic_ns() - began) // 1000)
        if kind == "topics" and not access.may_read_all:
            answer = [line for line in answer if access.may_read(line["name"])]
        return encode(answer)

    def frontier(self, body: bytes, given_up: GivenUp) -> object:
        """How far the log is committed."""
        asked = decode(FrontierAsk, body, "the body of frontier")
        served = self._shelf.of(asked.lane)
        confirmed = {}
        if asked.linearizable:
            served.ranges.check_log(asked)
            confirmed["confirmed"] = served.ranges.confirmed()
        frontier = served.ranges.frontier(_plain(asked), given_up)
        if asked.beyond is not None and frontier.offset <= asked.beyond:
            frontier = served.watch.wait(asked.beyond, asked.timeout_ms * 1000, given_up)
            if frontier.offset <= asked.beyond:
                not_silent(served)
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
        """Offset of the first record at or after a time."""
        asked = decode(TimeAsk, body, "the body of offset_for_time")
        served = self._shelf.of(asked.lane)
        frontier = served.ranges.frontier(_plain(asked), given_up)
        with sent_on(self._gateway.elsewhere, asked.lane):
            found = served.reader.offset_for_time(asked.time_us)
            if asked.linearizable and found >= frontier.offset:  # a record that is found is the first one anywhere
                served.ranges.frontier(asked, given_up)
                found = served.reader.offset_for_time(asked.time_us)
            return {"offset": found}

    def ticks(self, body: bytes, given_up: GivenUp) -> object:
        """The ticks of a range."""
        asked = decode(TicksAsk, body, "the body of ticks")
        frontier = self._ranges.frontier(asked, given_up)
        start, end = self._ranges.offsets(asked.start, asked.end, frontier)
        found = [tick for tick in self._reader.ticks(start, end) if tick[0] >= asked.from_tick]
        return found[: limits.TICKS_AN_ANSWER_MAX]

    def tick_end(self, body: bytes, given_up: GivenUp) -> object:
        """Where a batch that ends at a tick ends."""
        asked = decode(TickEndAsk, body, "the body of tick_end")
        frontier = self._ranges.frontier(asked, given_up)
        start, end = self._ranges.offsets(asked.start, asked.end, frontier)
        return {"offset": tick_end(self._reader.ticks, start, min(asked.limit, end), end, asked.every)}

    def bytes_end(self, body: bytes, given_up: GivenUp) -> object:
        """Where a batch of so many bytes ends."""
        asked = decode(BytesEndAsk, body, "the body of bytes_end")
        frontier = self._ranges.frontier(asked, given_up)
        start, end = self._ranges.offsets(asked.start, asked.end, frontier)
        return {"offset": bytes_end(self._reader.rows(start, end, asked.topics), start, end, asked.bytes)}

    def plan(self, body: bytes, given_up: GivenUp) -> object:
        """A range cut into parts."""
        return self._plans.plan(decode(Command, body, "the body of plan"), given_up)

    def lanes(self, body: bytes, given_up: GivenUp) -> object:
        """The lanes of unordered sends and how far they are."""
        self._ranges.frontier(decode(NothingAsked, body, "the body of lanes"), given_up)
        not_silent(self._shelf.of(""))  # who follows asks again and again
        return self._shelf.lanes()

    def topics(self, body: bytes, given_up: GivenUp) -> object:
        """The topics and what they hold."""
        self._ranges.frontier(decode(NothingAsked, body, "the body of topics"), given_up)
        return [topic_line(topic) for topic in self._reader.topics()]

    def producers(self, body: bytes, given_up: GivenUp) -> object:
        """The producers and how far they are."""
        self._ranges.frontier(decode(NothingAsked, body, "the body of producers"), given_up)
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
        """What named readers saved."""
        self._ranges.frontier(decode(NothingAsked, body, "the body of readers"), given_up)
        return self._reader.state().readers

    def save_offset(self, body: bytes, given_up: GivenUp) -> object:
        """Save a named reader's offset, through the gateway."""
        asked = decode(SaveAsk, body, "the body of save_offset")
        frontier = self._ranges.frontier(asked, given_up)
        self._ranges.check_not_beyond(f"reader {asked.reader!r} cannot save offset {asked.offset}", asked.offset, frontier)
        self._gateway.save_offset(asked.reader, asked.offset, asked.back, given_up)
        return {"reader": asked.reader, "offset": asked.offset}

    def passed(self, body: bytes, given_up: GivenUp) -> object:
        """What a named reader saved (None: nothing), once that is `offset` or more, or the time is over."""
        asked = decode(PassedAsk, body, "the body of passed")
        served = self._shelf.of("")
        self._ranges.frontier(asked, given_up)
        found = self._positions.of(asked.reader).offset
        if found < asked.offset and asked.timeout_ms:
            not_silent(served)
            if served.state() in _CUT_OFF and self._gateway.others():
                raise Fault("unavailable", f"this gateway is {served.state()}, and hears of nothing new: ask the next one")
            wait_us = asked.timeout_ms * 1000
            found = self._watch.wait_beside(lambda: self._positions.of(asked.reader), asked.offset - 1, wait_us, given_up).offset
        return {"reader": asked.reader, "offset": None if found < 0 else found}

    def report(self, body: bytes, given_up: GivenUp) -> object:
        """A query tells how far it is: noted here, and kept in the log if it has a name and has moved. That it cannot be kept is no
        error: it is told as `trouble`, also to who asks for `queries`.
        """
        asked = decode(ReportAsk, body, "the body of report")
        frontier = self._ranges.frontier(asked, given_up)
        who = f"query {asked.name or asked.label!r}"
        self._ranges.check_not_beyond(f"{who} cannot have processed offset {asked.offset}", asked.offset, frontier)
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
        """The queries that told this gateway how far they are."""
        frontier = self._ranges.frontier(decode(NothingAsked, body, "the body of queries"), given_up)
        return self._queries.lines(frontier.offset, time.time_ns() // 1000)


def _plain(asked: Linearizable) -> Linearizable:
    """The question without its wish for a linearizable answer, which the action sees to itself."""
    return msgspec.structs.replace(asked, linearizable=False)
