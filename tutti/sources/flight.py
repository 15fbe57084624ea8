"""A `Source` that reads the committed log from gateways over Arrow Flight, with failover between them."""

from __future__ import annotations

import contextlib
import logging
import os
import threading
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from datetime import datetime
from math import inf
from types import TracebackType
from typing import Any, Self, TypeVar

import orjson
import pyarrow as pa
from pyarrow import flight

from tutti import limits
from tutti.common.connection_log import ConnectionLog, Event
from tutti.common.credentials import Credentials, given
from tutti.common.gateway_url import Address, parse_url
from tutti.data.gateway_states import CUT_OFF
from tutti.data.names import check_name
from tutti.data.scan_request import ScanBatch, ScanRequest, check_topics
from tutti.errors import Behind, ConfigError, FormatError, NotAllowed, Refused, TuttiError, Unavailable
from tutti.io.admin import RequestClient
from tutti.io.endpoints import Endpoints
from tutti.sources.flight_pool import FLIGHT_EXCEPTIONS, client_of, drop_client, lacks_field, perform_action, translate
from tutti.sources.source import Frontier, LaneInfo, Range, Topic, time_us_of

Answer = TypeVar("Answer")
Body = dict[str, object]
Seconds = float | None
_METADATA_KEY = b"tutti"
_SLACK_S = limits.BEHIND_WAIT_US_MAX / 1e6 + 3.0  # time for an answer to arrive, in addition to the requested wait
#: States in which another gateway may have more of the log.
_MAY_LAG = CUT_OFF | {"joining"}  # "joining" is not in CUT_OFF, because a joining gateway catches up while a reader waits
#: Why a reader leaves a gateway, by the state of the gateway.
_LEFT = {
    "minority": "the gateway has no majority of its group",
    "halted": "the gateway has halted",
    "joining": "the gateway is still catching up",
    "unknown": "the gateway does not answer its reads process",
}
_CONNECT_S_MIN = 0.1  # shortest time limit for the request to the client port
_SLACK_S_MIN = limits.ADDRESS_TIMEOUT_US / 1e6  # lower bound of `_SLACK_S` for callers with a shorter `patience`

LOG = logging.getLogger("tutti.client.reader")
NO_ANSWER = "no gateway answered a read"
_locations: dict[tuple[int, Address], str] = {}  # (process id, gateway address) -> location of the gateway's reads port


class FlightSource:
    """Reads from the gateways of a url. Thread-safe; the whole process shares the connections.

    Each request carries the highest frontier seen so far, so no gateway with a lower frontier answers (rule C7). After a failure,
    a scan continues at the offset that it reached, at another gateway or at the same gateway after a restart.

    Args:
        url: addresses of the gateways, as `tutti://HOST:P[,HOST:P...]` or as a list.
        timeout: seconds for one request. The search for a gateway ends after `timeout` or `patience`, whichever is shorter.
        patience: seconds that a running scan searches for a gateway before it fails.
        seen: highest frontier that another reader has seen; gateways with a lower frontier refuse requests.
        log: uuid of the only accepted log; "" accepts the first log found.
        lane: name of a lane of unordered records (NUMBER-INCARNATIONHEX), whose own offsets then apply; "" reads the ordered log.
        credentials: credentials for the gateways. The default comes from the environment.
        subject: first words of each log line about the connection. "" logs no such line, because the caller reports the error.

    Attributes:
        seen: highest frontier that an answer has contained; no later answer has a lower one.
        connection: logs each change of the connection once.
        last_error: the last failure of a gateway; empty if a gateway has answered since, and a majority has confirmed its frontier.

    Raises (all methods):
        Unavailable: no gateway answered in time; the message lists the failure of each.
        Behind: no usable gateway answered in time, and one that answered has a lower frontier than this reader has already seen.
        OffsetOutOfRange: the log does not hold the offsets.
        UsageError: an argument is wrong.
        Refused: a gateway serves a different log than before (code "log"), or refused the request.
        Damaged: a stored frame fails its checksum; all records returned before it are correct.
    """

    def __init__(
        self,
        url: str | Iterable[Address],
        timeout: float = limits.REQUEST_TIMEOUT_US / 1e6,
        patience: float = limits.READ_RETRY_US / 1e6,
        seen: int = 0,
        log: str = "",
        lane: str = "",
        credentials: Credentials | None = None,
        subject: str = "",
    ) -> None:
        """Prepare, without a connection."""
        self.subject = subject
        self._credentials = given(credentials)
        self._lane_field = {"lane": lane} if lane else {}
        self._route = Endpoints(parse_url(url) if isinstance(url, str) else url)
        self._timeout = timeout
        self._search = min(timeout, patience)
        self._patience = patience
        self.seen = seen
        self.last_error = ""
        self._answered: Address | None = None  # the gateway of the last answer
        self._log = log
        self.connection = ConnectionLog(LOG, subject, time.monotonic())
        self._no_quorum = False  # True if the last line about the quorum reports its loss
        self._cut_off: dict[Address, str] = {}  # state of each gateway that has answered since the majority was lost
        self._stale = False  # True if no gateway could confirm the last frontier
        self._interrupted = False
        self._lock = threading.Lock()

    @property
    def addresses(self) -> tuple[Address, ...]:
        """The gateways of the url and those that gateways have reported since then; the current gateway comes first."""
        with self._lock:
            known, present = self._route.addresses, self._route.current
            return tuple(dict.fromkeys([present, *known]))

    @property
    def responsive(self) -> tuple[Address, ...]:
        """The gateways that are not known to be silent, sorted by address."""
        with self._lock:
            return tuple(sorted(set(self._route.responsive)))

    # -- requests

    def frontier(self, beyond: int | None = None, timeout: float = 0.0, patience: float | None = None) -> Frontier:
        """Return the frontier; with `beyond`, wait up to `timeout` seconds until the frontier is above `beyond`.

        Without `beyond`, the gateway first confirms its frontier with a majority of the group. The reader tries the next gateway if
        the current gateway has no majority. If no gateway can confirm a frontier, the call logs a warning and returns the highest
        frontier as `stale`; committed records below that frontier stay readable.

        Args:
            beyond: offset that the frontier must exceed, or None to return at once.
            timeout: seconds to wait for a frontier above `beyond`.
            patience: seconds to search for a gateway, or None for the source's own limit.
        """
        deadline = time.monotonic() + timeout
        best: Frontier | None = None
        no_majority: set[Address] = set()
        while True:
            left = max(0.0, deadline - time.monotonic())
            # Only the first request of a round is a long poll: after a gateway without a majority, ask the others without a wait.
            wait = 0.0 if no_majority else min(left, limits.ANSWER_WAIT_US_MAX / 1e6)
            try:
                # A long poll that has lasted for some time leaves less patience for a search.
                found = self._request_frontier(
                    beyond, wait, patience if beyond is None or patience is None else min(patience, left)
                )
            except Unavailable:
                if best is None or (beyond is not None and not no_majority):
                    raise  # raised if no gateway of this round has answered
                return self._warn_if_stale(best)
            if best is None or found.offset >= best.offset:
                best = found
            lacks_majority = (found.stale and bool(found.log)) if beyond is None else found.state in CUT_OFF
            self._note_majority(not lacks_majority, found.state, best.offset)
            may_lag = found.stale if beyond is None else found.state in CUT_OFF and best.offset <= beyond
            switched = may_lag and self._switch_gateway(no_majority, found.state)
            if beyond is not None and time.monotonic() >= deadline:
                return best  # the timeout has passed; after a switch, the next call asks the new gateway
            if switched:
                continue
            if beyond is None:
                return self._warn_if_stale(best if found.stale else found)
            if best.offset > beyond:
                return best
            no_majority.clear()  # no gateway has a frontier above `beyond`, so start a new round with a long poll

    def _warn_if_stale(self, best: Frontier) -> Frontier:
        """Log a warning when the frontier becomes stale, and return the frontier."""
        with self._lock:
            self._stale = best.stale
            if best.stale and best.log:  # a log that does not exist yet cannot be stale
                self._report_quorum(found=False, offset=best.offset)
        return best

    def _note_majority(self, found: bool, state: str, offset: int) -> None:
        """Record whether the current gateway, which is in `state`, has a majority, and log what changes for this reader."""
        now = time.monotonic()
        with self._lock:
            current, cut_off = self._route.current, self._cut_off
            if not found:
                # An address that answers a second time shows that none of the others has a majority, because all were tried.
                if current in cut_off:
                    self._report_quorum(found=False, offset=offset)
                cut_off[current] = state
                return
            if cut_off and current not in cut_off:
                self.connection.on(Event.REDIRECTED, now, _left(next(iter(cut_off.values()))))
                self.connection.on(Event.CONNECTED, now, where=self._where)
            cut_off.clear()
            self._report_quorum(found=True, offset=offset)

    def _report_quorum(self, *, found: bool, offset: int) -> None:
        """Log the loss of the majority that confirms frontiers, and its return. Called with the lock.

        `offset` is the highest known frontier.
        """
        changed, self._no_quorum = found is self._no_quorum, not found
        if not changed:
            return
        subject = f"{self.subject}: " if self.subject else ""
        if found:
            self.last_error = ""
            LOG.info("%sgateway at %s confirms its frontier with a majority again", subject, self._route.current)
        else:
            self.last_error = (
                f"no gateway can confirm its frontier with a majority: reading to offset {offset}, other gateways may have more "
                f"({self._route.summary()})"
            )
            LOG.warning("%s%s", subject, self.last_error)

    def _request_frontier(self, beyond: int | None, wait: float, patience: float | None) -> Frontier:
        """Send one request for the frontier, and update the known gateways from its answer."""
        body: Body = {**self._lane_field}
        if beyond is not None:
            body |= {"beyond": beyond, "timeout_ms": int(wait * 1000)}
        slack = _SLACK_S if patience is None else min(_SLACK_S, max(patience - wait, _SLACK_S_MIN))
        answer = self._request("frontier", body, wait + slack, patience, linearizable=beyond is None)
        gateways = answer.get("gateways")
        if gateways:
            with self._lock:
                self._route.update(gateways, answer.get("silent", ()), answer["state"] == "primary")
        return Frontier(
            self._check_log(answer["log"]),
            answer["start"],
            self.note_frontier(answer["frontier"]),
            answer["position"],
            answer["time_us"],
            answer["tick"],
            answer["state"],
            # Answers about a lane, and answers of earlier releases, lack the field `confirmed`: judge them by the gateway's state.
            beyond is None and not answer.get("confirmed", answer["state"] not in _MAY_LAG),
        )

    def _switch_gateway(self, no_majority: set[Address], state: str) -> bool:
        """Add the current gateway to `no_majority` and switch to another gateway; return False if no other gateway is left."""
        with self._lock:
            current = self._route.current
            if current in no_majority or len(self._route.addresses) == len(no_majority) + 1:
                return False
            no_majority.add(current)
            self._route.advance(_left(state))
        return True

    def plan(self, request: ScanRequest, splits: int | None = None, split_bytes: int | None = None) -> list[Range]:
        """As `Source.plan`."""
        body: Body = {"start": request.start, "end": request.end, "topics": request.topics, "absent_ok": True, **self._lane_field}
        body |= {name: size for name, size in (("splits", splits), ("split_bytes", split_bytes)) if size is not None}
        answer = self._request("plan", body)
        self._check_log(answer["log"])
        return [Range(part["start"], part["end"], part["rows"], part["bytes"]) for part in answer["ranges"]]

    def offset_for_time(self, time: int | datetime) -> int:
        """Return the offset of the first record at or after a time (us since 1970 UTC, or an aware datetime), else the frontier."""
        body: Body = {"time_us": time_us_of(time), **self._lane_field}
        return int(self._request("offset_for_time", body, linearizable=not self._stale)["offset"])

    def tick_end(self, start: int, limit: int, end: int, every: int) -> int:
        """As `Source.tick_end`."""
        return int(self._request("tick_end", {"start": start, "limit": limit, "end": end, "every": every})["offset"])

    def bytes_end(self, start: int, end: int, bytes_max: int, topics: Sequence[str] | None = None) -> int:
        """As `Source.bytes_end`."""
        chosen = check_topics(topics)
        return int(self._request("bytes_end", {"start": start, "end": end, "bytes": bytes_max, "topics": chosen})["offset"])

    def topics(self, upto: int = 0) -> list[Topic]:
        """Return all topics, from a gateway whose frontier is at least `upto`."""
        self.note_frontier(upto)
        return [Topic(*(line[name] for name in Topic._fields)) for line in self._request("topics", {})]

    def lanes(self, patience: float | None = None) -> list[LaneInfo]:
        """Return the lanes of unordered records that a gateway knows, the oldest lane of each origin first."""
        answer = self._request("lanes", {}, _SLACK_S, patience)
        return [LaneInfo(**{name: line[name] for name in LaneInfo._fields if name in line}) for line in answer]

    def lane_source(self, lane: LaneInfo) -> FlightSource:
        """Return a source for a lane.

        A gateway whose frontier of the lane is below `lane.frontier` refuses the requests of this source.
        """
        subject = f"{self.subject}, lane {lane.lane}" if self.subject else ""
        return FlightSource(
            self.addresses, self._timeout, self._patience, lane.frontier, self._log, lane.lane, self._credentials, subject
        )

    def with_earliest_start(self) -> tuple[FlightSource, int]:
        """Find the gateway with the oldest record; return a source that tries this gateway first, and the record's offset.

        Gateways differ here, because each one has its own retention. The search skips gateways that do not answer at once.
        """
        addresses, starts = self.addresses, dict[Address, int]()
        for address in addresses:
            with contextlib.suppress(TuttiError):
                starts[address] = self._with_addresses([address], "")._request_frontier(None, 0.0, 0.0).start
        if not starts:
            return self, self.frontier().start  # no gateway answered at once, so wait for any of them
        most = min(starts, key=starts.__getitem__)
        return self._with_addresses(dict.fromkeys([most, *addresses]), self.subject), starts[most]

    def _with_addresses(self, addresses: Iterable[Address], subject: str) -> FlightSource:
        lane = self._lane_field.get("lane", "")
        with self._lock:
            return FlightSource(addresses, self._timeout, self._patience, self.seen, self._log, lane, self._credentials, subject)

    def readers(self, patience: float | None = None, *, linearizable: bool = True) -> dict[str, int]:
        """Return the committed offsets of named readers and named queries, as of this call or later.

        With `linearizable=False`, a gateway answers at once from its own log, which may lag: use these offsets for display only.
        """
        return dict(self._request("readers", {}, patience=patience, linearizable=linearizable))

    def save_offset(self, reader: str, offset: int, back: bool = False) -> None:
        """Commit the offset of a named reader durably; `back` allows an offset below the committed one."""
        check_name("reader", reader)
        self._request("save_offset", {"reader": reader, "offset": offset, "back": back})

    # -- records

    def scan(self, request: ScanRequest) -> Iterator[ScanBatch]:
        """As `Source.scan`. After a failure, the scan continues at another gateway, from the offset that it reached."""
        fields = {"topics": request.topics, "columns": request.fetched_columns, "absent_ok": request.absent_ok, **self._lane_field}
        position = request.start
        failing_since: float | None = None
        kind = Unavailable
        left = inf  # as in `_call`
        # Request an empty range too, because the gateway then checks that the topics exist.
        while position < request.end or (position == request.end == request.start):
            ticket = orjson.dumps({"start": position, "end": request.end, **fields, **self._guard_fields()})
            reopen_at = time.monotonic() + limits.STREAM_US_MAX / 2e6
            try:
                with contextlib.closing(self._stream(ticket, left)) as stream:
                    for batch in stream:
                        failing_since, kind, left = None, Unavailable, inf  # the patience restarts with each batch
                        found = request.scan_batch(batch, position)
                        position = found.next
                        yield found
                        if time.monotonic() > reopen_at:
                            break  # reopen before gRPC's deadline, which starts with the call and also counts the caller's time
                    else:
                        if request.topics is None and position != request.end:
                            raise FormatError(
                                f"gateway {self._route.current} ended a stream at offset {position}, before its end {request.end}"
                            )
                        return
            except Unavailable as error:
                now = time.monotonic()
                failing_since = now if failing_since is None else failing_since
                # Report `Behind` if any gateway lags, because that is more informative than unreachable gateways.
                kind = Behind if isinstance(error, Behind) else kind
                until = failing_since + self._patience
                until = until if request.time_left is None else min(until, now + request.time_left())
                self._fail_over(str(error), until, until - failing_since, kind)
                left = until - time.monotonic()
            except NotAllowed as error:
                self.end(f"{self._route.current}: {error}")
                raise

    def _stream(self, ticket: bytes, left: float) -> Generator[pa.RecordBatch]:
        """Yield the batches of one stream. Convert Flight's errors to `TuttiError`, but not errors that the consumer throws in."""
        stream = None
        try:
            try:
                client, headers = client_of(self._location(left), self._credentials)
                options = flight.FlightCallOptions(timeout=limits.STREAM_US_MAX / 1e6, headers=headers)
                stream = client.do_get(flight.Ticket(ticket), options)
                # The schema contains the log's uuid and arrives first, so this check rejects another log before its first record.
                answer = orjson.loads((stream.schema.metadata or {}).get(_METADATA_KEY, b"{}"))
                self._check_log(answer.get("log", ""))
                self.note_frontier(answer.get("frontier", 0))
            except FLIGHT_EXCEPTIONS as error:
                raise translate(error) from error
            while True:
                try:
                    batch = stream.read_chunk().data
                except StopIteration:
                    stream = None
                    return
                except FLIGHT_EXCEPTIONS as error:
                    raise translate(error) from error
                if batch is not None and batch.num_rows:
                    self._report_success()
                    yield batch
        finally:
            if stream is not None:
                stream.cancel()  # frees the gateway's thread for this stream at once

    def close(self) -> None:
        """Do nothing: the connections stay open, because all readers of the process share them."""

    def __enter__(self) -> Self:
        """Return the source itself."""
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        """Close the source."""
        self.close()

    # -- failover

    def _guard_fields(self) -> dict[str, object]:
        """Return the fields by which a gateway refuses the request if it lags or serves a different log."""
        with self._lock:
            return {"seen": self.seen, "log": self._log}

    def _request(
        self, action: str, body: Body, timeout: Seconds = None, patience: Seconds = None, linearizable: bool = False
    ) -> Any:
        """Send an action to a gateway and return the answer. With `linearizable`, the gateway first confirms its frontier."""
        fields = body | self._guard_fields()
        # Gateways refuse `linearizable` for a lane, because no majority decides the records of a lane.
        confirm = {"linearizable": True} if linearizable and not self._lane_field else {}

        def perform(client: Any, options: flight.FlightCallOptions) -> Any:
            try:
                return perform_action(client, options, action, orjson.dumps(fields | confirm))
            except FLIGHT_EXCEPTIONS as error:
                if not (confirm and lacks_field(error, "linearizable")):
                    raise
                return perform_action(client, options, action, orjson.dumps(fields))  # a gateway of an earlier release

        return self._call(perform, self._timeout if timeout is None else timeout, self._search if patience is None else patience)

    def _call(self, call: Callable[[Any, Any], Answer], seconds: float, patience: float) -> Answer:
        """Call one gateway after another until one answers, at most `seconds` for each call and `patience` seconds in all."""
        began, kind = time.monotonic(), Unavailable
        left = inf  # the first attempt has its full time even if the caller has less patience
        while True:
            try:
                client, headers = client_of(self._location(left), self._credentials)
                try:
                    # A long poll waits for a second at the gateway, so a shorter time than `_SLACK_S_MIN` could not be enough.
                    limit = min(seconds, max(left, _SLACK_S_MIN))
                    answer = call(client, flight.FlightCallOptions(timeout=limit, headers=headers))
                except FLIGHT_EXCEPTIONS as error:
                    raise translate(error) from error
                self._report_success()
                return answer
            except Unavailable as error:
                kind = Behind if isinstance(error, Behind) else kind
                self._fail_over(str(error), began + patience, patience, kind)
                left = began + patience - time.monotonic()
            except NotAllowed as error:
                self.end(f"{self._route.current}: {error}")
                raise

    def _location(self, left: float) -> str:
        """Return the reads port of the current gateway, from the cache or from a request to its client port.

        The request takes at most `left` seconds, and the probe of a port that does not answer a second more.
        """
        address = self._route.current
        location = _locations.get((os.getpid(), address))
        if location is None:
            with self._lock:
                limit = self._route.begin_attempt()
            limit, probes = max(min(limit, left), _CONNECT_S_MIN), min(limit, left) >= limits.ADDRESS_TIMEOUT_US / 1e6
            with RequestClient([address], limit, rounds=1, probes=probes, credentials=self._credentials) as client:
                try:
                    welcome = client.welcome()
                except (ConfigError, Unavailable) as error:
                    if isinstance(error, ConfigError) and len(self._route.addresses) == 1:
                        raise
                    raise Unavailable(client.trouble or str(error)) from error  # `_route.summary()` adds the address
            if not welcome.reads:
                raise Unavailable(f"gateway {welcome.gateway} serves no reads: its configuration has no reads port")
            with self._lock:
                self._route.update(welcome.gateways, welcome.silent, welcome.state == "primary")
            location = _locations[os.getpid(), address] = welcome.reads
        return location

    @property
    def _where(self) -> str:
        return f"gateway at {self._route.current}"

    def _report_success(self) -> None:
        with self._lock:
            self._route.record("connected")
            self._route.reset_delay()
            self._answered = self._route.current
            if not self._no_quorum:
                self.last_error = ""
            if not self.connection.connected:  # a running scan calls this method for each batch
                self.connection.on(Event.CONNECTED, time.monotonic(), where=self._where)

    def _fail_over(self, reason: str, deadline: float, seconds: float, kind: type[Unavailable] = Unavailable) -> None:
        """Switch to the next gateway after a failure; raise `kind` if the deadline (monotonic seconds) has passed."""
        now = time.monotonic()
        deadline = now if self._interrupted else deadline
        with self._lock:
            # The gateway may have another reads port after a restart, so the next attempt must not use the cached port.
            location = _locations.pop((os.getpid(), self._route.current), None)
            if location is not None:
                drop_client(location)
            self.last_error = f"{self._route.current}: {reason}"
            wait = self._route.advance(reason)
            self._report_failure(reason, now)
        left = deadline - time.monotonic()
        if left <= 0:
            results = f"{self._route.summary()}{self._route.advice()}"
            raise kind(f"{NO_ANSWER} within {round(seconds, 2):g} s: {results}")
        time.sleep(min(max(wait, limits.RETRY_US_MIN / 1e6), left))

    def _report_failure(self, reason: str, now: float) -> None:
        """Log a failure if it changes the condition of the connection. Called with the lock."""
        if self._interrupted:
            return  # nobody waits for this reader any more
        connection, rounds = self.connection, self._route.rounds
        # A gateway without a majority still answers, so the failures of others mean an outage only after a complete round.
        if self._cut_off and rounds < 2:
            return
        self._cut_off.clear()
        if connection.connected:
            connection.on(Event.LOST, now, reason)
        elif rounds:
            connection.on(Event.NONE_ANSWERS, now, self._route.summary())
        connection.remind(now, results=self._route.summary() if now >= connection.due else "")

    def interrupt(self) -> None:
        """End a search for a gateway in another thread: it raises `Unavailable` after its current attempt, and logs nothing."""
        self._interrupted = True

    def end(self, reason: str) -> None:
        """Report an outage in the statistics: the reader is closed, or the gateways refuse it. The next answer ends the outage."""
        with self._lock:
            self.last_error = reason
            self.connection.end(time.monotonic())

    @property
    def gateway(self) -> str:
        """The address of the gateway that answered last; empty during an outage."""
        # Not the current address of the route, which a reader without a majority changes for each request.
        return str(self._answered or self._route.current) if self.connection.connected else ""

    def _check_log(self, log: str) -> str:
        if self._log and log and log != self._log:
            raise Refused(
                f"gateway {self._route.current} serves log {log}, but this reader started on log {self._log}: "
                "the url names gateways of different groups, or the log was replaced",
                "log",
            )
        self._log = log or self._log
        return self._log

    def note_frontier(self, offset: int) -> int:
        """Record and return a frontier that a reader has seen, so that gateways with a lower frontier refuse later requests."""
        with self._lock:
            self.seen = max(self.seen, offset)
        return offset


def _left(state: str) -> str:
    """Return why a reader leaves a gateway that is in `state`."""
    return _LEFT.get(state, f"the gateway is {state}")
