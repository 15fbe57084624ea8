"""Talk: one question at a time to the first gateway that answers, waiting for it. For tools, and for finding the other ports."""

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
from tutti.io.endpoints import CONNECTED, Route
from tutti.io.port_probe import misheard, peek
from tutti.io.zmtp_connection import Link, News, no_link

_GOODBYE_S = 0.2
_NO_ANSWER = "connected, but there was no answer"
_LOOK_S = 0.25  # who waits for a turn and gives up is noticed this soon
#: What another gateway may do although this one does not.
_ELSEWHERE = frozenset({"not_primary", "leaving", "halted", "behind"})

Answer = TypeVar("Answer", client_protocol.Welcome, client_protocol.Done, client_protocol.StatusAnswer)


class Talk:
    """A conversation with one gateway after another. Thread-safe; connects when first used, and again when a connection broke.

    Args:
        url: `tutti://HOST:P[,HOST:P...]`, or addresses.
        timeout: seconds that one question may take, connecting included.
        rounds: how often everyone may be tried in that time; None is as often as it goes.
        learn: whether other gateways of the group may answer, too; False: only those that the url names.
        credentials: what it is let in with; those of the environment when left out.

    Raises (all methods):
        Unavailable: no gateway answered in time; the message says what was met at each.
        ConfigError: every address is a port that speaks something else.
        Refused: the gateway would not do it (NotAllowed: not for these credentials).
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
        self._route = Route(parse_url(url) if isinstance(url, str) else url)
        self._timeout = timeout
        self._rounds = rounds
        self._session = secrets.token_bytes(16)
        self._lock = threading.Lock()
        self._link: Link | None = None
        self._welcome: client_protocol.Welcome | None = None
        self._request = 0
        self._trouble = ""  # the last thing that a gateway said instead of an answer
        self._met = ""  # the last thing that was met instead of one
        self._answered: tuple[Address, str] | None = None  # who said last, to the present question, to ask again, and why
        self._retry_us = limits.RETRY_US_MIN

    def welcome(self) -> client_protocol.Welcome:
        """Who the gateway is and where its other ports are; asked anew each time, so that the state is the present one."""
        deadline = time.monotonic() + self._timeout
        with self._turn(deadline):
            if self._link is not None and self._welcome is not None:
                self._say(self._hello())
                welcome = self._answer(0, client_protocol.Welcome, deadline)
                if welcome is not None:
                    self._welcome = welcome
                    return welcome
            return self._connected(deadline)

    @property
    def trouble(self) -> str:
        """What was met last in place of an answer, without where; empty when nothing was."""
        return self._met

    @property
    def address(self) -> Address:
        """The gateway that answers, or is asked next."""
        return self._route.present

    def broke(self, seconds: float) -> bool:
        """Wait so long, or until the connection that stands breaks, as when its gateway ends or stands still; whether it did."""
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

    def _is_lost(self, link: Link) -> bool:
        try:
            while link.receive() is not None:
                pass  # news that nobody asked for
        except FormatError:
            return True
        return link.news() is not None

    def close(self) -> None:
        """Say goodbye."""
        with self._lock:
            if self._link is not None:
                self._say(client_protocol.Bye())
                self._link.close(_GOODBYE_S)
                self._link = None

    def __enter__(self) -> Self:
        """Itself."""
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        """Close."""
        self.close()

    def ask(self, kind: type[Answer], make: Callable[[int], msgspec.Struct], given_up: Callable[[], bool] = bool) -> Answer:
        """Put a question; `make` gives it for its number, `kind` is its answer's type.

        Who waits for its turn waits within its time, and has none when it has `given_up` by then: nothing is asked for nobody.
        """
        deadline = time.monotonic() + self._timeout
        with self._turn(deadline, given_up):
            self._retry_us, self._answered = limits.RETRY_US_MIN, None
            while True:
                self._connected(deadline)
                self._request += 1
                self._say(make(self._request))
                answer = self._answer(self._request, kind, deadline)
                if answer is not None:
                    return answer

    @contextlib.contextmanager
    def _turn(self, deadline: float, given_up: Callable[[], bool] = bool) -> Iterator[None]:
        while not self._lock.acquire(timeout=max(0.0, min(deadline - time.monotonic(), _LOOK_S))):
            if given_up() or time.monotonic() >= deadline:
                raise Unavailable(f"{self.address} has not answered those who asked before within {self._timeout:g} s")
        try:
            if given_up():
                raise Unavailable("who asked has given up")
            self._drop_what_ended()
            yield
        finally:
            self._lock.release()

    # -- one connection after another

    def _drop_what_ended(self) -> None:
        """A connection that ended while nobody asked, as a gateway ends one that its pings come back from too late, was no failure
        of anybody: the next one is made to the same gateway, at once.
        """
        if self._link is not None and not self._link.stands():
            self._link.close()
            self._link = self._welcome = None

    def _hello(self) -> client_protocol.Hello:
        token = self._credentials.token if self._credentials is not None else ""
        return client_protocol.Hello(client_protocol.PROTOCOL, CLIENT, self._session, token)

    def _connected(self, deadline: float) -> client_protocol.Welcome:
        """Be connected, and welcomed there."""
        while self._link is None or self._welcome is None:
            self._welcome = None
            if self._link is None:
                try:
                    self._link = Link(self._route.present, self._credentials)
                except OSError as error:
                    self._met = self._trouble = no_link(error)
                    self._pause(limits.RETRY_US_MAX / 1e6, deadline)
                    continue
            until = min(deadline, time.monotonic() + limits.ADDRESS_TIMEOUT_US / 1e6)
            if not self._link.up and not self._comes_up(self._link, until):
                self._leave(self._link.trouble or None, deadline)
                continue
            self._say(self._hello())
            welcome = self._answer(0, client_protocol.Welcome, until, deadline)
            if welcome is not None:
                self._welcome = welcome
                if self._learn:
                    self._route.learn(welcome.gateways, welcome.silent, welcome.state == "primary")
                self._route.met(CONNECTED)
                self._route.went_well()
        return self._welcome

    def _comes_up(self, link: Link, until: float) -> bool:
        while not link.up:
            news = link.news()
            if news is News.UP:
                return True
            if news is not None or time.monotonic() >= until:
                return False
            link.wait(max(0.0, until - time.monotonic()))
        return True

    def _say(self, message: msgspec.Struct) -> None:
        if self._link is not None:
            self._link.send([client_protocol.encode_control(message)])

    def _answer(self, request: int, kind: type[Answer], until: float, deadline: float | None = None) -> Answer | None:
        """The answer to a request (0: to Hello); None when the question is to be put again, maybe to another gateway."""
        deadline = until if deadline is None else deadline
        while self._link is not None:
            link = self._link
            data = None
            try:
                data = link.receive()
                message = client_protocol.decode_from_gateway(data) if data is not None else None
            except FormatError as error:
                self._trouble, wrong = misheard(data or b"", error, self._route.present)
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

    def _wait_on(self, link: Link, until: float, deadline: float) -> None:
        """Nothing came: wait for more, or leave."""
        if link.news() is not None:
            self._leave("the connection was lost", deadline)
        elif time.monotonic() >= until:
            self._leave(_NO_ANSWER, deadline)
        else:
            link.wait(min(until - time.monotonic(), limits.POLL_US_MAX / 1e6))

    def _denied(self, denied: client_protocol.Denied, deadline: float) -> None:
        """Put it right and return, to ask again; or raise."""
        if denied.code == "hello":
            self._welcome = None
        elif denied.retry:
            self._met = self._trouble = f"{denied.reason} ({denied.code})"
            self._answered = self._route.present, self._trouble
            if denied.code in _ELSEWHERE:
                self._leave(self._trouble, deadline)
            self._pause(self._retry_us / 1e6, deadline)
            self._retry_us = min(2 * self._retry_us, limits.RETRY_US_MAX)
        else:
            raise (NotAllowed if denied.code in NOT_ALLOWED else Refused)(denied.reason, denied.code)

    def _leave(self, reason: str | None, deadline: float, wrong: bool = False) -> None:
        """Go on to the next gateway; without a reason, look who is there. `wrong`: the address is no client port."""
        if self._link is not None:
            self._link.close()
            self._link = None
            if reason is None:
                reason, wrong = peek(self._route.present)
        self._met = reason or ""
        wait = self._route.move_on(self._met, wrong)
        if self._route.only_wrong_ports():
            raise ConfigError(self._route.told())
        if self._rounds is not None and self._route.rounds >= self._rounds:
            deadline = 0.0
        self._pause(wait, deadline)

    def _pause(self, wait: float, deadline: float) -> None:
        left = deadline - time.monotonic()
        time.sleep(max(0.0, min(wait, left)))
        if left <= wait:  # nobody could answer any more
            raise Unavailable(self._no_luck())

    def _no_luck(self) -> str:
        """Why the time is over: what a gateway answered says most, where one did, and then what it or another one did since."""
        time_text = f"{self._timeout:.2g}" if self._timeout < 10 else f"{self._timeout:.0f}"
        if self._answered is None:
            told = self._route.told()
            last = f"; last answer: {self._trouble}" if self._trouble and self._trouble not in told else ""
            return f"no gateway answered within {time_text} s: {told}{last}"
        who, said = self._answered
        met = self._route.all_met()
        since = met.pop(who, CONNECTED)
        parts = [f"{who} answered last: {said}"]
        if since == _NO_ANSWER:
            parts.append("asked once more, it had not answered yet when the time was over")
        elif since not in (CONNECTED, said):
            parts.append(f"then: {since}")
        parts += [f"{address}: {text}" for address, text in met.items()]
        return f"it was not done within {time_text} s: {'; '.join(parts)}"
