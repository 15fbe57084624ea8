"""A fake Flight server for reader tests: a list of records, and failures on demand. `fail` is called with the name of each call
("frontier", "do_get", ...) before it is served, and may raise. `cut_after` ends one stream with an error after that many records.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa
from pyarrow import flight

from tests.unit.client.fake_gateway import LOG_UUID, FakeGateway
from tutti.data.frames.columns import COLUMNS, schema_of
from tutti.data.frames.schema import HEADERS
from tutti.data.scan_request import ScanRequest
from tutti.sources.flight import FlightSource


def error_of(code: str, message: str, **fields: object) -> flight.FlightError:
    """An error as a gateway's reads process sends it."""
    kind = flight.FlightUnavailableError if code in ("behind", "busy", "stopping", "unavailable") else flight.FlightServerError
    error = kind(message)
    error.extra_info = json.dumps({"code": code, "message": message, **fields}).encode()
    return error


def always(code: str) -> Callable[[str], None]:
    """Return a failure for every call."""

    def fail(what: str) -> None:
        raise error_of(code, f"{code} all the time")

    return fail


def values(batches: Any) -> list[int]:
    """The values of all records."""
    return [int(value) for batch in batches for value in batch.column("value").to_pylist()]


def read_values(source: FlightSource, start: int, end: int) -> list[int]:
    """The values of a range."""
    return values(found.batch for found in source.scan(ScanRequest(start, end, columns=("value",))))


class FakeReads(flight.FlightServerBase):
    """Serves `records`: pairs of topic and value; offsets are their places."""

    def __init__(self, log: str = LOG_UUID) -> None:
        super().__init__("grpc://127.0.0.1:0")
        self.records: list[tuple[str, bytes]] = []
        self.lanes_there: dict[str, tuple[str, bool, list[tuple[str, bytes]]]] = {}  # lane -> gateway, newest, records
        self.halted: dict[str, str] = {}  # lane -> why nothing can follow in it here
        self.lost: dict[str, str] = {}  # lane -> why it cannot be read here
        self.begins: dict[str, int] = {}  # lane -> the first offset that it still holds
        self.log = log
        self.start = 0
        self.saved: dict[str, int] = {}
        self.fail: Callable[[str], None] = lambda what: None
        self.cut_after: int | None = None
        self.state = "primary"
        self.confirms = True  # its frontier, with a majority
        self.of_old = False  # a release that knows no `linearizable`
        self.gateways: dict[str, str] = {}
        self.batch = 4
        self.asked: list[tuple[str, dict[str, Any]]] = []
        self.thread = threading.Thread(target=self.serve, daemon=True)
        self.thread.start()

    @property
    def location(self) -> str:
        return f"grpc://127.0.0.1:{self.port}"

    def stop(self) -> None:
        self.shutdown()
        self.thread.join()

    def do_action(self, context: Any, action: Any) -> Iterator[bytes]:
        asked = json.loads(action.body.to_pybytes() or b"{}")
        self.asked.append((action.type, asked))
        self.fail(action.type)
        self._known(asked)
        if self.of_old and "linearizable" in asked:
            raise error_of("malformed", "the body is not understood: Object contains unknown field `linearizable`")
        if asked.get("linearizable") and not self.confirms and action.type != "frontier":
            raise error_of("behind", "this gateway cannot confirm its frontier")
        return iter([json.dumps(getattr(self, action.type)(asked)).encode()])

    def _known(self, asked: dict[str, Any]) -> None:
        """Refuse, as a gateway does, a caller that has seen more or another log."""
        if asked["log"] not in ("", self.log):
            raise error_of("other_log", f"this gateway serves log {self.log}: the url names gateways of different groups")
        frontier = len(self.of(asked))
        if frontier < asked["seen"]:
            raise error_of("behind", f"the frontier is {frontier} and {asked['seen']} was seen")

    def of(self, asked: dict[str, Any]) -> list[tuple[str, bytes]]:
        """Return the records of the requested log or lane."""
        lane = asked.get("lane", "")
        if lane and lane not in self.lanes_there:
            raise error_of("unknown_lane", f"this gateway has no lane {lane!r}")
        if lane in self.lost:
            raise error_of("unknown_lane", f"this gateway cannot read lane {lane!r}: {self.lost[lane]}")
        return self.lanes_there[lane][2] if lane else self.records

    def lanes(self, asked: dict[str, Any]) -> object:
        return [
            {"lane": name, "gateway": gateway, "newest": newest, "start": self.begins.get(name, 0)}
            | ({"frontier": 0, "position": 0} if name in self.lost else {"frontier": len(found), "position": len(found) + 1})
            | {"halted": self.halted.get(name, ""), "lost": self.lost.get(name, "")}
            for name, (gateway, newest, found) in self.lanes_there.items()
        ]

    def frontier(self, asked: dict[str, Any]) -> object:
        until = time.monotonic() + asked.get("timeout_ms", 0) / 1000
        while asked.get("beyond") is not None and len(self.of(asked)) <= asked["beyond"] and time.monotonic() < until:
            time.sleep(0.005)
        frontier = len(self.of(asked))
        return {
            "log": self.log,
            "start": self.begins.get(asked.get("lane", ""), self.start),
            "frontier": frontier,
            "position": frontier + 2,
            "time_us": 5,
            "tick": 1,
            "state": "halted" if asked.get("lane") in self.halted else self.state,
            "gateways": self.gateways,
            "silent": [],
            **({"confirmed": self.confirms and self.state == "primary"} if asked.get("linearizable") else {}),
        }

    def offset_for_time(self, asked: dict[str, Any]) -> object:
        return {"offset": asked["time_us"] // 1_000_000}

    def plan(self, asked: dict[str, Any]) -> object:
        return {
            "log": self.log,
            "start": asked["start"],
            "end": asked["end"],
            "frontier": len(self.records),
            "ranges": [{"start": asked["start"], "end": asked["end"], "rows": asked["end"] - asked["start"], "bytes": 1}],
        }

    def tick_end(self, asked: dict[str, Any]) -> object:
        return {"offset": min(asked["limit"], asked["end"])}

    def bytes_end(self, asked: dict[str, Any]) -> object:
        return {"offset": min(asked["start"] + asked["bytes"], asked["end"])}

    def topics(self, asked: dict[str, Any]) -> object:
        names = ("name", "records", "bytes", "first_offset", "last_offset", "first_time_us", "last_time_us")
        return [dict(zip(names, ("t", 1, 2, 3, 4, 5, 6), strict=True))]

    def readers(self, asked: dict[str, Any]) -> object:
        return self.saved

    def save_offset(self, asked: dict[str, Any]) -> object:
        if asked["offset"] < self.saved.get(asked["reader"], 0) and not asked["back"]:
            raise error_of("refused", f"{asked['offset']} lies below {self.saved}", reason="offset")
        self.saved[asked["reader"]] = asked["offset"]
        return asked

    def do_get(self, context: Any, ticket: Any) -> flight.FlightDataStream:
        asked = json.loads(ticket.ticket)
        self.asked.append(("do_get", asked))
        self.fail("do_get")
        self._known(asked)
        records = self.of(asked)
        begin = self.begins.get(asked.get("lane", ""), 0)
        if asked["start"] < begin:
            raise error_of("below_start", f"the range's start is offset {asked['start']} and this log begins at {begin}")
        if asked["end"] > len(records):
            raise error_of("beyond_frontier", f"the log is committed up to {len(records)}")
        schema = schema_of(asked["columns"] or COLUMNS)
        told = json.dumps({"log": self.log, "frontier": len(records)}).encode()
        return flight.GeneratorStream(schema.with_metadata({b"tutti": told}), self._batches(asked, schema))

    def _batches(self, asked: dict[str, Any], schema: pa.Schema) -> Iterator[pa.RecordBatch]:
        offsets = [
            offset
            for offset in range(asked["start"], asked["end"])
            if asked["topics"] is None or self.of(asked)[offset][0] in asked["topics"]
        ]
        sent = 0
        for at in range(0, len(offsets), self.batch):
            if self.cut_after is not None and sent >= self.cut_after:
                self.cut_after = None
                raise error_of("stopping", "this gateway goes down")
            some = offsets[at : at + self.batch]
            yield pa.RecordBatch.from_arrays([self._column(name, some, asked) for name in schema.names], schema=schema)
            sent += len(some)

    def _column(self, name: str, offsets: list[int], asked: dict[str, Any]) -> pa.Array[Any]:
        records, lane = self.of(asked), asked.get("lane", "")
        field = schema_of([name]).field(0)
        values: dict[str, Callable[[int], object]] = {
            "offset": lambda offset: offset,
            "topic": lambda offset: records[offset][0],
            "value": lambda offset: records[offset][1],
            "timestamp": lambda offset: offset * 1_000_000,
            "gateway": lambda offset: self.lanes_there[lane][0] if lane else "fake",
            "producer": lambda offset: "p",
            "sequence": lambda offset: offset + 1,
            "view": lambda offset: 65537,
            "tick": lambda offset: 0,
        }
        if name == "headers":
            headers: pa.Array[Any] = pa.array([[{"key": "h", "value": b"v"}] for _ in offsets], HEADERS)
            return headers
        make = values.get(name)
        made: pa.Array[Any] = pa.array([make(offset) if make else None for offset in offsets], field.type)
        return made


class ReadableGateway:
    """A fake gateway with a client port and a reads port."""

    def __init__(self, records: int = 0, log: str = LOG_UUID) -> None:
        self.reads = FakeReads(log)
        self.gateway = FakeGateway()
        self.gateway.reads = self.reads.location
        self.add(records)

    def add(self, count: int) -> None:
        """So many more records, of the topics a and b in turn."""
        for _ in range(count):
            offset = len(self.reads.records)
            self.reads.records.append(("ab"[offset % 2], b"%d" % offset))

    @property
    def url(self) -> str:
        return self.gateway.url

    def restart_reads(self) -> None:
        """Stop the reads process, and start it at another port."""
        old, self.reads = self.reads, FakeReads(self.reads.log)
        self.reads.records, self.reads.saved = old.records, old.saved
        self.gateway.reads = self.reads.location
        old.stop()

    def __enter__(self) -> ReadableGateway:
        return self

    def __exit__(self, *_: object) -> None:
        self.reads.stop()
        self.gateway.close()
