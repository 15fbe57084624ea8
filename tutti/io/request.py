"""Requests: one request at a time to the first gateway that answers, for tools and for the discovery of other ports."""

from __future__ import annotations

import contextlib
import secrets
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from types import TracebackType
from typing import Self, TypeVar

import msgspec

from tutti import limits
from tutti.common.address import Address, parse_url
from tutti.common.credentials import Credentials, given
from tutti.data import client_protocol
from tutti.delivery.session import CLIENT, NOT_ALLOWED
from tutti.errors import ConfigError, FormatError, NotAllowed, Refused, Unavailable
from tutti.io.endpoints import CONNECTED, Endpoints
from tutti.io.port_probe import explain_message, probe_port
from tutti.io.zmtp_connection import ConnectionEvent, ZmtpConnection, connection_failure

_GOODBYE_S = 0.2
_NO_ANSWER = "connected, but got no answer"
_CHECK_S = 0.25  # interval at which a queued request checks whether its caller has given up
#: Codes of refusals after which another gateway may accept the request.
_ELSEWHERE = frozenset({"not_primary", "leaving", "halted", "behind"})

Answer = TypeVar("Answer", client_protocol.Welcome, client_protocol.Done, client_protocol.StatusAnswer)


class RequestClient:
    """Requests to one gateway after another. Thread-safe. Connects with the first request, and again after a lost connection.

    Args:
        url: `tutti://HOST:P[,HOST:P...]`, or addresses.
        timeout: seconds for one request, including the connection setup.
        rounds: how often each address may be tried in that time; None: without limit.
        learn: True if discovered gateways may answer, too; False: only those of the url.
        credentials: authenticate the client; the default comes from the environment.

    Raises (all methods):
        Unavailable: no gateway answered in time. The message has the result at each address.
        ConfigError: every address is a port of another protocol.
        Refused: the gateway rejects the request (`NotAllowed`: rejects the credentials).
    """

    def __init__(
        self,
        url: str | Iterable[Address],
        timeout: float = limits.REQUEST_TIMEOUT_US / 1e6,
        rounds: int | None = None,
        *,
        learn: bool = True,
        credentials: Credentials | None = None,
    ) -> None:
        """Prepare; nothing is connected yet."""
        self._credentials = given(credentials)
        self._learn = learn
        self._route = Endpoints(parse_url(url) if isinstance(url, str) else url)
        self._timeout = timeout
        self._rounds = rounds
        self._session = secrets.token_bytes(16)
        self._lock = threading.Lock()
        self._link: ZmtpConnection | None = None
        self._welcome: client_protocol.Welcome | None = None
        self._request = 0
        self._trouble = ""  # the last error that a gateway returned
        self._last_error = ""  # the last error in place of an answer
        self._answered: tuple[Address, str] | None = None  # the gateway that asked for a retry of this request, and its reason
        self._retry_us = limits.RETRY_US_MIN

    def welcome(self) -> client_protocol.Welcome:
        """Return the Welcome of the gateway, with its state and ports. Each call requests it again."""
        deadline = time.monotonic() + self._timeout
        with self._exclusive(deadline):
            if self._link is not None and self._welcome is not None:
                self._send_control(self._hello())
                welcome = self._answer(0, client_protocol.Welcome, deadline)
                if welcome is not None:
                    self._welcome = welcome
                    return welcome
            return self._connected(deadline)

    @property
    def trouble(self) -> str:
        """The last error in place of an answer, without its address; empty if there was none."""
        return self._last_error

    @property
    def address(self) -> Address:
        """The gateway that answers, or that is asked next."""
        return self._route.present

    def broke(self, seconds: float) -> bool:
        """Wait up to `seconds` for the loss of the current connection. Return True if it was lost."""
        until = time.monotonic() + seconds
        with self._lock:
            while (left := until - time.monotonic()) > 0:
                if self._link is None:
                    time.sleep(left)
                elif self._is_lost(self._link):
                    self._link.close()
                    self._link = self._welcome = None
                    return True
                else:
                    self._link.wait(left)
        return False

    def _is_lost(self, link: ZmtpConnection) -> bool:
        try:
            while link.receive() is not None:
                pass  # unsolicited messages
        except FormatError:
            return True
        return link.news() is not None

    def close(self) -> None:
        """Send Bye and close."""
        with self._lock:
            if self._link is not None:
                self._send_control(client_protocol.Bye())
                self._link.close(_GOODBYE_S)
                self._link = None

    def __enter__(self) -> Self:
        """Return the object."""
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        """Close."""
        self.close()

    def ask(self, kind: type[Answer], make: Callable[[int], msgspec.Struct], given_up: Callable[[], bool] = bool) -> Answer:
        """Send a request and return its answer, which has type `kind`. `make` builds the request from its number.

        A request may wait for an earlier one of another thread, within its own timeout. If the caller has `given_up` by then, the
        request is not sent.
        """
        deadline = time.monotonic() + self._timeout
        with self._exclusive(deadline, given_up):
            self._retry_us, self._answered = limits.RETRY_US_MIN, None
            while True:
                self._connected(deadline)
                self._request += 1
                self._send_control(make(self._request))
                answer = self._answer(self._request, kind, deadline)
                if answer is not None:
                    return answer

    @contextlib.contextmanager
    def _exclusive(self, deadline: float, given_up: Callable[[], bool] = bool) -> Iterator[None]:
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
        """Close a connection that the gateway ended between two requests, for example because a ping was answered too late.

        Such an end does not count as a failure: the next connection goes to the same gateway at once.
        """
        if self._link is not None and not self._link.stands():
            self._link.close()
            self._link = self._welcome = None

    def _hello(self) -> client_protocol.Hello:
        token = self._credentials.token if self._credentials is not None else ""
        return client_protocol.Hello(client_protocol.PROTOCOL, CLIENT, self._session, token)

    def _connected(self, deadline: float) -> client_protocol.Welcome:
        """Ensure that a connection and its Welcome exist, and return the Welcome."""
        while self._link is None or self._welcome is None:
            self._welcome = None
            if self._link is None:
                try:
                    self._link = ZmtpConnection(self._route.present, self._credentials)
                except OSError as error:
                    self._last_error = self._trouble = connection_failure(error)
                    self._pause(limits.RETRY_US_MAX / 1e6, deadline)
                    continue
            until = min(deadline, time.monotonic() + limits.ADDRESS_TIMEOUT_US / 1e6)
            if not self._link.up and not self._comes_up(self._link, until):
                self._leave(self._link.trouble or None, deadline)
                continue
            self._send_control(self._hello())
            welcome = self._answer(0, client_protocol.Welcome, until, deadline)
            if welcome is not None:
                self._welcome = welcome
                if self._learn:
                    self._route.learn(welcome.gateways, welcome.silent, welcome.state == "primary")
                self._route.met(CONNECTED)
                self._route.went_well()
        return self._welcome

    def _comes_up(self, link: ZmtpConnection, until: float) -> bool:
        while not link.up:
            news = link.news()
            if news is ConnectionEvent.UP:
                return True
            if news is not None or time.monotonic() >= until:
                return False
            link.wait(max(0.0, until - time.monotonic()))
        return True

    def _send_control(self, message: msgspec.Struct) -> None:
        if self._link is not None:
            self._link.send([client_protocol.encode_control(message)])

    def _answer(self, request: int, kind: type[Answer], until: float, deadline: float | None = None) -> Answer | None:
        """Return the answer to a request (0: to Hello), or None if the request must be sent again, perhaps to another gateway."""
        deadline = until if deadline is None else deadline
        while self._link is not None:
            link = self._link
            data = None
            try:
                data = link.receive()
                message = client_protocol.decode_from_gateway(data) if data is not None else None
            except FormatError as error:
                self._trouble, wrong = explain_message(data or b"", error, self._route.present)
                self._leave(self._trouble, deadline, wrong)
                continue
            if message is None:
                self._wait_on(link, until, deadline)
                continue
            if isinstance(message, client_protocol.Denied) and message.request in (0, request):
                self._denied(message, deadline)
                return None
            if isinstance(message, kind) and getattr(message, "request", 0) == request:
                return message
        return None

    def _wait_on(self, link: ZmtpConnection, until: float, deadline: float) -> None:
        """Wait for a message, or leave the gateway after an error or a timeout."""
        if link.news() is not None:
            self._leave("the connection was lost", deadline)
        elif time.monotonic() >= until:
            self._leave(_NO_ANSWER, deadline)
        else:
            link.wait(min(until - time.monotonic(), limits.POLL_US_MAX / 1e6))

    def _denied(self, denied: client_protocol.Denied, deadline: float) -> None:
        """Prepare a retry of the request, or raise."""
        if denied.code == "hello":
            self._welcome = None
        elif denied.retry:
            self._last_error = self._trouble = f"{denied.reason} ({denied.code})"
            self._answered = self._route.present, self._trouble
            if denied.code in _ELSEWHERE:
                self._leave(self._trouble, deadline)
            self._pause(self._retry_us / 1e6, deadline)
            self._retry_us = min(2 * self._retry_us, limits.RETRY_US_MAX)
        else:
            raise (NotAllowed if denied.code in NOT_ALLOWED else Refused)(denied.reason, denied.code)

    def _leave(self, reason: str | None, deadline: float, wrong: bool = False) -> None:
        """Change to the next gateway. Without a reason, probe the address. `wrong`: the address is not a client port."""
        if self._link is not None:
            self._link.close()
            self._link = None
            if reason is None:
                reason, wrong = probe_port(self._route.present)
        self._last_error = reason or ""
        wait = self._route.move_on(self._last_error, wrong)
        if self._route.only_wrong_ports():
            raise ConfigError(self._route.told())
        if self._rounds is not None and self._route.rounds >= self._rounds:
            deadline = 0.0
        self._pause(wait, deadline)

    def _pause(self, wait: float, deadline: float) -> None:
        left = deadline - time.monotonic()
        time.sleep(max(0.0, min(wait, left)))
        if left <= wait:  # no gateway could answer in the remaining time
            raise Unavailable(self._timeout_text())

    def _timeout_text(self) -> str:
        """Return the text of the timeout error: what a gateway answered, if one did, then the last result at each address."""
        time_text = f"{self._timeout:.2g}" if self._timeout < 10 else f"{self._timeout:.0f}"
        if self._answered is None:
            results = self._route.told()
            last = f"; last answer: {self._trouble}" if self._trouble and self._trouble not in results else ""
            return f"no gateway answered within {time_text} s: {results}{last}"
        who, said = self._answered
        met = self._route.all_met()
        since = met.pop(who, CONNECTED)
        parts = [f"{who} answered last: {said}"]
        if since == _NO_ANSWER:
            parts.append("the repeated request had no answer within the time")
        elif since not in (CONNECTED, said):
            parts.append(f"then: {since}")
        parts += [f"{address}: {text}" for address, text in met.items()]
        return f"the request was not done within {time_text} s: {'; '.join(parts)}"
