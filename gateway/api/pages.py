"""What the admin pages say."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Mapping

import msgspec

from gateway.api import memory
from gateway.api.gateway import GatewayLink
from gateway.api.http import Page
from gateway.api.queries import Queries
from gateway.api.slots import Slots
from gateway.api.streams import Streams
from gateway.api.watch import FrontierWatch
from gateway.errors import TuttiError
from gateway.log.reader import Frontier, LogReader

LOG = logging.getLogger("tutti.reads")
JSON = "application/json"
OK, UNAVAILABLE = 200, 503


class Pages:
    """Makes the pages of one gateway."""

    def __init__(
        self,
        reader: LogReader,
        watch: FrontierWatch[Frontier],
        streams: Streams,
        calls: Slots,
        gateway: GatewayLink,
        queries: Queries,
    ) -> None:
        """Speak of the log of `reader`, of the gateway behind `gateway`, and of what queries told here."""
        self._queries = queries
        self._reader = reader
        self._watch = watch
        self._streams = streams
        self._calls = calls
        self._gateway = gateway

    def table(self) -> Mapping[str, Page]:
        """The pages by path."""
        return {"/healthz": self.health, "/readyz": self.ready, "/metrics": self.metrics, "/v1/status": self.status}

    def health(self) -> tuple[int, str, bytes]:
        """Whether this process is up and the gateway answers it."""
        status = self._gateway.status()
        if status is None:
            answer = {"status": "unavailable", "reason": self._gateway.reason}
            return UNAVAILABLE, JSON, msgspec.json.encode(answer)
        return OK, JSON, b'{"status":"ok"}'

    def ready(self) -> tuple[int, str, bytes]:
        """Whether the gateway takes records: not while there is a reason why it would not, as a full disk or one that hangs."""
        status = self._gateway.status() or {"state": "unknown", "reason": self._gateway.reason}
        answer = {"state": status.get("state"), "reason": status.get("reason", "")}
        ready = answer["state"] == "primary" and not answer["reason"]
        return OK if ready else UNAVAILABLE, JSON, msgspec.json.encode(answer)

    def status(self) -> tuple[int, str, bytes]:
        """Everything that the gateway tells of itself, and this process of its own."""
        status = self._gateway.status()
        if status is None:
            frontier = self._watch.now()
            status = {
                "state": "unknown",
                "reason": self._gateway.reason,
                "log": self._reader.log,
                "start": self._reader.start,
                "frontier": frontier.offset,
                "position": frontier.position,
            }
            return UNAVAILABLE, JSON, msgspec.json.encode({**status, "reads_served": self.reads()})
        queries = self._queries.lines(self._watch.now().offset, time.time_ns() // 1000)
        return OK, JSON, msgspec.json.encode({**status, "queries": queries, "reads_served": self.reads()})

    def metrics(self) -> tuple[int, str, bytes]:
        """Metrics, in Prometheus' form."""
        from gateway.api.metrics import CONTENT_TYPE, exposition  # noqa: PLC0415 - 2 MB that a gateway without scrapes keeps

        topics, lags = {}, {}
        try:
            state, frontier = self._reader.state(), self._watch.now().offset
            topics = {topic.name: topic.records for topic in state.topics.values()}
            lags = {reader: max(0, frontier - offset) for reader, offset in state.readers.items()}
        except TuttiError as error:  # the other figures are wanted all the more
            LOG.error("the log's state cannot be read", extra={"fields": {"error": str(error)}})
        return OK, CONTENT_TYPE, exposition(self._gateway.status(), self.reads(), topics, lags)

    def reads(self) -> dict[str, object]:
        """Figures of this process."""
        streams = self._streams
        meters = streams.meters
        places = {"stream": streams.scans, "follow": streams.followers, "action": self._calls}
        return {
            "pid": os.getpid(),
            "calls": {kind: slots.used for kind, slots in places.items()},
            "busy": {kind: slots.refused for kind, slots in places.items()} | {"room": streams.room.refused},
            "streams": {
                "opened": meters.opened,
                "failed": meters.failed,
                "records": meters.records,
                "batches": meters.batches,
                "bytes": meters.bytes,
            },
            "memory": {"private_bytes": memory.private_bytes(), "batches_bytes": streams.room.held()},
        }
