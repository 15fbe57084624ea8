"""Requests to gateways, for tools and for the discovery of a gateway's other ports.

`RequestClient` sends one request at a time to the first gateway that answers. `AdminClient` adds the status requests and the
administrative commands.
"""

from __future__ import annotations

import contextlib
import secrets
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from types import TracebackType
from typing import Any, Self, TypeVar

import msgspec
import orjson

from tutti import limits
from tutti.common.credentials import Credentials, given
from tutti.common.gateway_url import Address, parse_url
from tutti.data import client_protocol
from tutti.data.names import check_name, check_producer
from tutti.delivery.session import CLIENT, NOT_ALLOWED
from tutti.errors import ConfigError, FormatError, NotAllowed, Refused, Unavailable
from tutti.io.endpoints import CONNECTED, SILENT_ADVICE, Endpoints
from tutti.io.port_probe import explain_message, probe_port
from tutti.io.zmtp_connection import ConnectionEvent, ZmtpConnection, connection_failure

_GOODBYE_S = 0.2
_NO_ANSWER = "connected, but got no answer"
_CHECK_S = 0.25  # interval at which a waiting request checks whether its caller has given up
#: Codes of refusals after which another gateway may accept the request.
_ELSEWHERE = frozenset({"not_primary", "leaving", "halted", "behind"})

Answer = TypeVar("Answer", client_protocol.Welcome, client_protocol.Done, client_protocol.StatusAnswer, client_protocol.TopicOpened)


class RequestClient:
    """Sends requests to one gateway at a time. Thread-safe. Connects at the first request, and again after a connection is lost.

    Args:
        url: url of the gateways, tutti://HOST:P[,HOST:P...], or addresses.
        timeout: seconds for one request, including the connection setup.
        rounds: number of attempts for each address within `timeout` (None: no limit).
        learn: use discovered gateways too, and not only the gateways of the url.
        await_start: try again until the timeout if no process listens at any address. If False, the first request then fails at
            once. After the first answer of a gateway, the client always tries again.
        probes: probe a port that stays silent for the timeout, so that the error can name the cause; a probe takes about a second.
        check: called about twice a second while a request is not done. An error that the function raises ends the request.
        credentials: credentials of the client; by default those of the environment.

    Raises (all methods):
        Unavailable: no gateway answered in time; the message contains the result at each address.
        ConfigError: every address is a port of a different protocol.
        Refused: the gateway rejects the request (`NotAllowed`: the gateway rejects the credentials).
    """

    def __init__(
        self,
        url: str | Iterable[Address],
        timeout: float = limits.REQUEST_TIMEOUT_US / 1e6,
        rounds: int | None = None,
        *,
        learn: bool = True,
        await_start: bool = True,
        probes: bool = True,
        check: Callable[[], None] | None = None,
        credentials: Credentials | None = None,
    ) -> None:
        """Prepare the client without connecting."""
        self._credentials = given(credentials)
        self._learn = learn
        self._await_start = await_start
        self._probes = probes
        self._check = check
        self._check_s = 0.0  # monotonic time of the next call of `check`
        self._endpoints = Endpoints(parse_url(url) if isinstance(url, str) else url)
        self._timeout = timeout
        self._rounds = rounds
        self._session = secrets.token_bytes(16)
        self._lock = threading.Lock()
        self._connection: ZmtpConnection | None = None
        self._welcome: client_protocol.Welcome | None = None
        self._request = 0
        self._trouble = ""  # the last error that a gateway returned
        self._last_error = ""  # the last error that occurred instead of an answer
        self._answered: tuple[Address, str] | None = None  # the gateway that last refused the request temporarily, and its reason
        self._retry_us = limits.RETRY_US_MIN

    def welcome(self) -> client_protocol.Welcome:
        """Return the Welcome of the gateway, with its state and ports. Each call requests a new Welcome."""
        deadline = time.monotonic() + self._timeout
        with self._exclusive(deadline):
            if self._connection is not None and self._welcome is not None:
                self._send_control(self._hello())
                welcome = self._answer(0, client_protocol.Welcome, deadline)
                if welcome is not None:
                    self._welcome = welcome
                    return welcome
            return self._connected(deadline)

    @property
    def trouble(self) -> str:
        """The last error that occurred instead of an answer, without the address; empty if no error occurred."""
        return self._last_error

    @property
    def address(self) -> Address:
        """The address of the gateway that answers, or the next address to try."""
        return self._endpoints.current

    def await_disconnect(self, seconds: float) -> bool:
        """Wait up to `seconds` for the loss of the current connection. Return True if the connection was lost."""
        until = time.monotonic() + seconds
        with self._lock:
            while (left := until - time.monotonic()) > 0:
                if self._connection is None:
                    time.sleep(left)
                elif self._is_lost(self._connection):
                    self._connection.close()
                    self._connection = self._welcome = None
                    return True
                else:
                    self._connection.wait(left)
        return False

    def _is_lost(self, connection: ZmtpConnection) -> bool:
        try:
            while connection.receive() is not None:
                pass  # unsolicited messages
        except FormatError:
            return True
        return connection.next_event() is not None

    def close(self) -> None:
        """Send Bye and close."""
        with self._lock:
            if self._connection is not None:
                self._send_control(client_protocol.Bye())
                # Wait at most this time for Bye to be sent; if Bye is lost, the closed connection ends the session.
                self._connection.close(_GOODBYE_S)
                self._connection = None

    def __enter__(self) -> Self:
        """Return the client itself."""
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        """Close the client."""
        self.close()

    def request(self, kind: type[Answer], make: Callable[[int], msgspec.Struct], given_up: Callable[[], bool] = bool) -> Answer:
        """Send a request and return its answer, which has type `kind`. `make` builds the request from the request number.

        The call may wait, within its timeout, for an earlier request of another thread. If `given_up` returns True during this
        wait, the client does not send the request.
        """
        deadline = time.monotonic() + self._timeout
        with self._exclusive(deadline, given_up):
            self._retry_us, self._answered = limits.RETRY_US_MIN, None
            self._check_s = time.monotonic() + limits.POLL_US_MAX / 1e6
            while True:
                self._connected(deadline)
                self._request += 1
                self._send_control(make(self._request))
                answer = self._answer(self._request, kind, deadline)
                if answer is not None:
                    return answer

    @contextlib.contextmanager
    def _exclusive(self, deadline: float, given_up: Callable[[], bool] = bool) -> Iterator[None]:
        # Wait for the other thread's request in short steps, so that a caller that gives up returns soon.
        while not self._lock.acquire(timeout=max(0.0, min(deadline - time.monotonic(), _CHECK_S))):
            if given_up() or time.monotonic() >= deadline:
                raise Unavailable(f"{self.address} has not answered earlier requests within {self._timeout:g} s")
        try:
            if given_up():
                raise Unavailable("the caller has given up")
            self._drop_ended()
            yield
        finally:
            self._lock.release()

    # -- one connection after another

    def _drop_ended(self) -> None:
        """Close a connection that the gateway ended between two requests, for example because no ping was answered in time.

        The end of an idle connection does not count as a failure, so the client reconnects to the same gateway at once.
        """
        if self._connection is not None and not self._connection.is_alive():
            self._connection.close()
            self._connection = self._welcome = None

    def _hello(self) -> client_protocol.Hello:
        token = self._credentials.token if self._credentials is not None else ""
        return client_protocol.Hello(client_protocol.PROTOCOL, CLIENT, self._session, token)

    def _connected(self, deadline: float) -> client_protocol.Welcome:
        """Ensure that a connection and its Welcome exist, and return the Welcome."""
        while self._connection is None or self._welcome is None:
            self._welcome = None
            if self._connection is None:
                try:
                    self._connection = ZmtpConnection(self._endpoints.current, self._credentials)
                except OSError as error:
                    self._last_error = self._trouble = connection_failure(error)
                    self._pause(limits.RETRY_US_MAX / 1e6, deadline)
                    continue
            # Limit the time for each address, so that a silent gateway does not use up the time of the request.
            until = min(deadline, time.monotonic() + self._endpoints.begin_attempt())
            if not self._connection.up and not self._await_connection(self._connection, until):
                silent = ""
                if time.monotonic() >= until:
                    silent = self._endpoints.end_attempt()
                    silent = silent if self._probes else f"no answer within {self._timeout:.2g} s: {SILENT_ADVICE}"
                self._try_next(self._connection.trouble or silent or None, deadline)
                continue
            until = min(deadline, time.monotonic() + limits.ADDRESS_TIMEOUT_US / 1e6)
            self._send_control(self._hello())
            welcome = self._answer(0, client_protocol.Welcome, until, deadline)
            if welcome is not None:
                self._welcome = welcome
                if self._learn:
                    self._endpoints.update(welcome.gateways, welcome.silent, welcome.state == "primary")
                # Replace an older failure at this address, so that a later timeout error does not report the old failure.
                self._endpoints.record(CONNECTED)
                self._endpoints.reset_delay()
                self._await_start = True  # a gateway runs, so a later refusal means that it restarts, or that another one is down
        return self._welcome

    def _await_connection(self, connection: ZmtpConnection, until: float) -> bool:
        while not connection.up:
            event = connection.next_event()
            if event is ConnectionEvent.UP:
                return True
            if event is not None or time.monotonic() >= until:
                return False
            connection.wait(max(0.0, until - time.monotonic()))
        return True

    def _send_control(self, message: msgspec.Struct) -> None:
        if self._connection is not None:
            self._connection.send([client_protocol.encode_control(message)])

    def _answer(self, request: int, kind: type[Answer], until: float, deadline: float | None = None) -> Answer | None:
        """Return the answer to a request (number 0 for Hello). Return None if the caller must send the request again."""
        deadline = until if deadline is None else deadline
        while self._connection is not None:
            connection = self._connection
            data = None
            try:
                data = connection.receive()
                message = client_protocol.decode_from_gateway(data) if data is not None else None
            except FormatError as error:
                self._trouble, wrong = explain_message(data or b"", error, self._endpoints.current)
                self._try_next(self._trouble, deadline, wrong)
                continue
            if message is None:
                self._wait_on(connection, until, deadline)
                continue
            if isinstance(message, client_protocol.Denied) and message.request in (0, request):
                self._on_denied(message, deadline)
                return None
            # Ignore other messages: unsolicited ones, such as a Welcome after a change of the group, and answers to old requests.
            if isinstance(message, kind) and getattr(message, "request", 0) == request:
                return message
        return None

    def _run_check(self) -> None:
        if self._check is not None and time.monotonic() >= self._check_s:
            self._check()
            self._check_s = time.monotonic() + limits.POLL_US_MAX / 1e6

    def _wait_on(self, connection: ZmtpConnection, until: float, deadline: float) -> None:
        """Wait for a message. After the loss of the connection or a timeout, change to the next gateway."""
        if connection.next_event() is not None:
            self._try_next(connection.loss, deadline)
        elif time.monotonic() >= until:
            self._try_next(_NO_ANSWER, deadline)
        else:
            self._run_check()
            connection.wait(min(until - time.monotonic(), limits.POLL_US_MAX / 1e6))

    def _on_denied(self, denied: client_protocol.Denied, deadline: float) -> None:
        """Handle a refusal: prepare a retry of the request, or raise if a retry does not help."""
        # The gateway does not know the session, for example after its restart, so `_connected` sends Hello again.
        if denied.code == "hello":
            self._welcome = None
        elif denied.retry:
            self._last_error = self._trouble = f"{denied.reason} ({denied.code})"
            # The timeout error begins with this answer, which says more than the failures at the other addresses.
            self._answered = self._endpoints.current, self._trouble
            # After a code of `_ELSEWHERE`, another gateway may accept the request.
            # After any other code, the same gateway may accept the request after a pause.
            if denied.code in _ELSEWHERE:
                self._try_next(self._trouble, deadline)
            self._pause(self._retry_us / 1e6, deadline)
            self._retry_us = min(2 * self._retry_us, limits.RETRY_US_MAX)
        else:
            raise (NotAllowed if denied.code in NOT_ALLOWED else Refused)(denied.reason, denied.code)

    def _try_next(self, reason: str | None, deadline: float, wrong: bool = False) -> None:
        """Change to the next gateway. If `reason` is None, probe the address first. `wrong` is True for another kind of port."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None
            # Only a probe can determine why an address accepts connections but does not answer.
            if reason is None:
                reason, wrong = probe_port(self._endpoints.current)
        self._last_error = reason or ""
        wait = self._endpoints.advance(self._last_error, wrong)
        if self._endpoints.only_wrong_ports():
            raise ConfigError(self._endpoints.summary())
        if self._rounds is not None and self._endpoints.rounds >= self._rounds:
            # Make `_pause` raise, because all rounds have failed.
            deadline = 0.0
        if not self._await_start and self._endpoints.nothing_listens():
            raise Unavailable(f"no gateway runs at {self._endpoints.summary()}{self._endpoints.advice()}")
        self._pause(wait, deadline)

    def _pause(self, wait: float, deadline: float) -> None:
        self._run_check()
        left = deadline - time.monotonic()
        time.sleep(max(0.0, min(wait, left)))
        if left <= wait:  # after the pause, no time is left for another attempt
            raise Unavailable(self._timeout_text())

    def _timeout_text(self) -> str:
        """Return the text of the timeout error: a gateway's last answer, if one answered, and the last result at each address."""
        time_text = f"{self._timeout:.2g}" if self._timeout < 10 else f"{self._timeout:.0f}"
        if self._answered is None:
            summary = self._endpoints.summary()
            last = f"; last answer: {self._trouble}" if self._trouble and self._trouble not in summary else ""
            return f"no gateway answered within {time_text} s: {summary}{last}{self._endpoints.advice()}"
        address, reason = self._answered
        results = self._endpoints.results()
        since = results.pop(address, CONNECTED)
        parts = [f"{address} answered last: {reason}"]
        if since == _NO_ANSWER:
            parts.append("the repeated request had no answer within the time")
        elif since not in (CONNECTED, reason):
            parts.append(f"then: {since}")
        parts += [f"{address}: {text}" for address, text in results.items()]
        return f"the request was not done within {time_text} s: {'; '.join(parts)}{self._endpoints.advice()}"


class AdminClient(RequestClient):
    """Client for status requests and administrative commands. `RequestClient` documents its arguments and errors."""

    def status(self) -> dict[str, Any]:
        """Return the gateway's status, as `tutti status --json` prints it."""
        answer: dict[str, Any] = orjson.loads(self.request(client_protocol.StatusAnswer, client_protocol.Status).json)
        return answer

    def producers(self) -> list[dict[str, Any]]:
        """Return the received-table, one dict for each producer.

        The keys are name, number, epoch, sequence, progress (or progress_base64), closed and last_seen (microseconds of the last
        tick before the producer's last frame, 0 before any tick).
        """
        answer = orjson.loads(self.request(client_protocol.StatusAnswer, client_protocol.Producers).json)
        return [{**line, "last_seen": line.get("last_seen_us")} for line in answer["producers"]]

    def members(self) -> list[dict[str, Any]]:
        """Return all gateways that the group's log names, with the state that the answering gateway knows.

        The keys are name, number, address, incarnation, state, voter, coordinator, age, frontier, lag, heard_us, round_trip_us and
        reason.
        """
        answer: list[dict[str, Any]] = orjson.loads(self.request(client_protocol.StatusAnswer, client_protocol.Members).json)
        return answer

    def forget(self, names: Iterable[str], instances: Iterable[bytes] = ()) -> None:
        """Delete the state of producers in the received-table, through the log.

        A client with a write right may delete its own unnamed producers if it passes their instance ids (`instances`). Other
        deletions need administrative rights.
        """
        checked, shown = tuple(check_producer(name) for name in names), tuple(instances)
        self.request(client_protocol.Done, lambda request: client_protocol.Forget(request, checked, shown))

    def fence(self, name: str) -> None:
        """End the current epoch of a producer, which fences its running instance."""
        check_producer(name)
        self.request(client_protocol.Done, lambda request: client_protocol.Fence(request, name))

    def open_topic(self, name: str) -> int:
        """Return the number of a topic. If the log lacks the topic, register it, as a producer does before its first record."""
        check_name("topic", name)
        return self.request(client_protocol.TopicOpened, lambda request: client_protocol.OpenTopic(request, name)).topic

    def change_roster(self, change: str, name: str, address: str = "", incarnation: bytes = b"") -> None:
        """Change the roster through the log: "add" (at `address`, HOST:P), "remove", or "replace" (by the disk `incarnation`).

        When this method returns, the change is durable on a majority. The client retries after temporary refusals.
        """
        check_name("gateway", name)
        self.request(
            client_protocol.Done, lambda request: client_protocol.ChangeRoster(request, change, name, address, incarnation)
        )

    def force_roster(self, names: Iterable[str]) -> None:
        """After a permanent loss of the majority, reduce the roster to `names`, which must include the answering gateway.

        Records that only the removed gateways stored are lost. When this method returns, all remaining gateways have decided the
        new roster.
        """
        checked = tuple(check_name("gateway", name) for name in names)
        self.request(client_protocol.Done, lambda request: client_protocol.ForceRoster(request, checked))

    def leave(self, name: str) -> None:
        """Make the gateway `name` leave the group and stop. `name` must be the answering gateway."""
        check_name("gateway", name)
        self.request(client_protocol.Done, lambda request: client_protocol.Leave(request, name))

    def save_offset(self, reader: str, offset: int, back: bool = False, given_up: Callable[[], bool] = bool) -> None:
        """Commit the offset of a named reader durably. With `back`, the offset may be lower than the committed one."""
        check_name("reader", reader)
        self.request(client_protocol.Done, lambda request: client_protocol.SaveOffset(request, reader, offset, back), given_up)
