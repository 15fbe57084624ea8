"""Contents of the admin pages: health, metrics, status, history, gateways, topics and readers."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Mapping
from http import HTTPStatus

import msgspec

from tutti.data.histograms import Histogram
from tutti.errors import TuttiError, UsageError
from tutti.log.read.reader import DecidedEnd, LogReader
from tutti_gateway.core import limits
from tutti_gateway.reads.admin import assets
from tutti_gateway.reads.admin.history import History
from tutti_gateway.reads.admin.http import AdminProtocol, Page, PageResponse, QueryParameters, error_response
from tutti_gateway.reads.admin.record_pages import RecordBrowser, number
from tutti_gateway.reads.common import process_memory
from tutti_gateway.reads.common.concurrency import ConcurrencyLimit
from tutti_gateway.reads.common.gateway_link import GatewayLink
from tutti_gateway.reads.flight.streams import Streams
from tutti_gateway.reads.logs.frontier_watch import FrontierWatch
from tutti_gateway.reads.logs.peer_endpoints import PeerCache
from tutti_gateway.reads.logs.query_reports import QueryReports
from tutti_gateway.reads.logs.served_logs import topic_line

LOG = logging.getLogger("tutti.reads")
JSON = "application/json"
MOMENT_MAX = 2**63 - 1


class Pages:
    """Makes the pages of one gateway."""

    def __init__(
        self,
        reader: LogReader,
        watch: FrontierWatch[DecidedEnd],
        streams: Streams,
        calls: ConcurrencyLimit,
        gateway: GatewayLink,
        queries: QueryReports,
        peers: PeerCache,
        browser: RecordBrowser,
        history: History,
        act_us: Histogram,
        security: Callable[[], dict[str, object]] = dict,
    ) -> None:
        """Store the sources of the pages.

        Args:
            reader: the log.
            watch: reads the current frontier.
            streams: the streams of the reads port, for their counters.
            calls: slots of the actions of the reads port.
            gateway: the link to the gateway.
            queries: reports of Spark queries.
            peers: endpoints of the other gateways.
            browser: makes the pages of records.
            history: values of the gateway over the last minutes and the last day.
            act_us: histogram of the durations of Flight actions, us.
            security: returns the values about tokens.
        """
        self._security = security
        self._queries = queries
        self._reader = reader
        self._watch = watch
        self._streams = streams
        self._calls = calls
        self._gateway = gateway
        self._peers = peers
        self._browser = browser
        self._history = history
        self._act_us = act_us

    def table(self) -> Mapping[str, Page]:
        """Return the pages by path."""
        return {
            **assets.table(),
            "/healthz": self.health,
            "/readyz": self.ready,
            "/metrics": self.metrics,
            "/v1/status": self.status,
            "/v1/history": self.history,
            "/v1/gateways": self.gateways,
            "/v1/topics": self.topics,
            "/v1/readers": self.readers,
            "/v1/records": self._browser.records,
        }

    def health(self, _parameters: QueryParameters) -> PageResponse:
        """Return 200 if the gateway answers this process, otherwise 503."""
        status = self._gateway.status()
        if status is None:
            return _json({"status": "unavailable", "reason": self._gateway.reason}, HTTPStatus.SERVICE_UNAVAILABLE)
        return _json({"status": "ok"})

    def ready(self, _parameters: QueryParameters) -> PageResponse:
        """Return 200 if the gateway accepts records; 503 if it has a reason not to, such as a full or hanging disk."""
        status = self._gateway.status() or {"state": "unknown", "reason": self._gateway.reason}
        answer = {"state": status.get("state"), "reason": status.get("reason", "")}
        ready = answer["state"] == "primary" and not answer["reason"]
        return _json(answer, HTTPStatus.OK if ready else HTTPStatus.SERVICE_UNAVAILABLE)

    def status(self, _parameters: QueryParameters) -> PageResponse:
        """Return the status of the gateway and the counters of this process."""
        status = self._gateway.status()
        if status is None:
            # Without an answer of the gateway, log and frontier come from its files, which stay readable.
            frontier = self._watch.now()
            status = {
                "state": "unknown",
                "reason": self._gateway.reason,
                "log": self._reader.log,
                "start": self._reader.start,
                "frontier": frontier.offset,
                "position": frontier.position,
            }
            return _json({**status, "reads_served": self.reads()}, HTTPStatus.SERVICE_UNAVAILABLE)
        queries = self._queries.lines(self._watch.now().offset, _now_us())
        return _json({**status, "queries": queries, "reads_served": self.reads()})

    def history(self, parameters: QueryParameters) -> PageResponse:
        """Return the history: points of seconds and the changes (`since`, `seconds`), or points of minutes (`minutes`)."""
        try:
            if "minutes" in parameters:
                return _json(self._history.minutes())
            since_us = number(parameters, "since", 0, 0, MOMENT_MAX)
            seconds = number(parameters, "seconds", limits.HISTORY_SECONDS, 0, limits.HISTORY_SECONDS)
        except UsageError as error:
            return error_response(HTTPStatus.BAD_REQUEST, str(error))
        return _json({"now_us": _now_us(), **self._history.recent(since_us, seconds)})

    def gateways(self, _parameters: QueryParameters) -> PageResponse:
        """Return the admin urls of the other gateways that answer."""
        return _json(self._peers.consoles())

    def topics(self, _parameters: QueryParameters) -> PageResponse:
        """Return the topics with their records and bytes, by name, up to a limit."""
        try:
            found = sorted(self._reader.topics(), key=lambda topic: topic.name)
        except TuttiError as error:
            return error_response(HTTPStatus.SERVICE_UNAVAILABLE, str(error))
        lines = [topic_line(topic) for topic in found[: limits.TOPICS_SHOWN_MAX]]
        return _json({"total": len(found), "topics": lines, "state": self._gateway.state()})

    def readers(self, _parameters: QueryParameters) -> PageResponse:
        """Return the named readers with their committed offsets and their lag, by name, up to a limit."""
        try:
            saved, frontier = self._reader.state().readers, self._watch.now().offset
        except TuttiError as error:
            return error_response(HTTPStatus.SERVICE_UNAVAILABLE, str(error))
        names = sorted(saved)[: limits.TOPICS_SHOWN_MAX]
        lines = [{"name": name, "offset": saved[name], "lag_records": max(0, frontier - saved[name])} for name in names]
        return _json({"total": len(saved), "readers": lines, "state": self._gateway.state()})

    def metrics(self, _parameters: QueryParameters) -> PageResponse:
        """Return the metrics in the Prometheus text format."""
        from tutti_gateway.reads.admin.metrics import CONTENT_TYPE, LogFigures, exposition  # noqa: PLC0415 - saves 2 MB without scrapes

        figures = LogFigures()
        try:
            state, frontier = self._reader.state(), self._watch.now().offset
            queries = self._queries.lines(frontier, _now_us())
            figures = LogFigures(
                {topic.name: (topic.records, topic.bytes) for topic in state.topics.values()},
                {reader: max(0, frontier - offset) for reader, offset in state.readers.items()},
                # A run without a name and a label also needs a label of its own, or two such runs would share one series.
                {query.name or query.label or query.run: (query.lag_records, query.lag_ms) for query in queries},
            )
        except TuttiError as error:  # the other metrics must still be served
            LOG.error("the log's state cannot be read", extra={"fields": {"error": str(error)}})
        return PageResponse(HTTPStatus.OK, CONTENT_TYPE, exposition(self._gateway.status(), self.reads(), figures))

    def reads(self) -> dict[str, object]:
        """Return the counters of this process."""
        streams = self._streams
        meters = streams.meters
        limited = {"stream": streams.scans, "follow": streams.followers, "action": self._calls}
        return {
            "pid": os.getpid(),
            "calls": {kind: slots.used for kind, slots in limited.items()},
            "busy": {kind: slots.refused for kind, slots in limited.items()} | {"room": streams.memory.refused},
            "streams": {
                "opened": meters.opened,
                "failed": meters.failed,
                "records": meters.records,
                "batches": meters.batches,
                "bytes": meters.bytes,
                "batch_us": meters.batch_us.to_dict(),
            },
            "security": self._security(),
            "admin": {"turned_away": dict(AdminProtocol.rejected)},
            "actions": {"act_us": self._act_us.to_dict()},
            "memory": {"private_bytes": process_memory.private_bytes(), "batches_bytes": streams.memory.allocated()},
        }


def _json(value: object, status: int = HTTPStatus.OK) -> PageResponse:
    return PageResponse(status, JSON, msgspec.json.encode(value))


def _now_us() -> int:
    return time.time_ns() // 1000
