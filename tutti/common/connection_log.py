"""Connection log: the log lines about one client's connection to the gateways, one line for each change.

`LINES` is the state machine: a condition, an event, and the line that the event logs. An event without an entry changes nothing and
logs nothing, so a repeated failure logs no second line. During an outage, `remind` repeats at growing intervals that the client is
still waiting. The class knows no socket, clock or thread; the caller passes in the time.
"""

from __future__ import annotations

import enum
import logging
from math import inf

from tutti import limits
from tutti.common.stats import records_text

_INTERVAL_S_MIN, _INTERVAL_S_MAX = limits.WAIT_LOG_US_MIN / 1e6, limits.WAIT_LOG_US_MAX / 1e6


class Condition(enum.Enum):
    """What a client has last logged about its connection. Every condition except `CONNECTED` and `THROTTLED` is an outage."""

    SEARCHING = "searching"  # the client has not found a gateway yet
    CONNECTED = "connected"
    THROTTLED = "throttled"  # connected, and the gateway has delayed records because of a quota
    LOST = "lost"  # the connection has ended, and the client tries other gateways
    UNREACHABLE = "unreachable"  # the client has tried every gateway, and none answers
    NO_QUORUM = "no quorum"  # the client has tried every gateway, and none of those that answer has a majority of the group
    STALLED = "stalled"  # the gateway answers, but the records get no outcome
    ENDED = "ended"  # the client is closed, or the gateways refuse it; another line or an exception reports the reason


class Event(enum.Enum):
    """Event of a client's connection."""

    CONNECTED = "connected"
    LOST = "lost"
    REDIRECTED = "redirected"  # the gateway still answers, but another one must serve this client
    NONE_ANSWERS = "none answers"
    NONE_HAS_QUORUM = "none has a quorum"
    STALLED = "stalled"
    THROTTLED = "throttled"


_WORKING = (Condition.CONNECTED, Condition.THROTTLED)
_WARNING, _INFO = logging.WARNING, logging.INFO
_LOST = (Condition.LOST, _WARNING, "lost the connection to {where}: {cause}")
_REDIRECTED = (Condition.LOST, _WARNING, "leaving {where} for another gateway: {cause}")
_UNREACHABLE = (Condition.UNREACHABLE, _WARNING, "no gateway is reachable: {cause}")
_NO_QUORUM = (Condition.NO_QUORUM, _WARNING, "no gateway has a quorum: {cause}")
_STALLED = (Condition.STALLED, _WARNING, "connected to {where}, but no record has got an outcome for {seconds} s: {cause}")
_THROTTLED = (Condition.THROTTLED, _WARNING, "{cause}: {where} delays records")
_CONNECTED = (Condition.CONNECTED, _INFO, "connected to {where}")
_RECOVERED = (Condition.CONNECTED, _INFO, "recovered after {seconds} s: connected to {where}{waited}")
#: The state machine: (condition, event) -> next condition, level and text of the line. A missing entry logs nothing.
LINES: dict[tuple[Condition, Event], tuple[Condition, int, str]] = {
    (Condition.SEARCHING, Event.CONNECTED): _CONNECTED,
    (Condition.SEARCHING, Event.NONE_ANSWERS): _UNREACHABLE,
    (Condition.SEARCHING, Event.NONE_HAS_QUORUM): _NO_QUORUM,
    (Condition.CONNECTED, Event.LOST): _LOST,
    (Condition.CONNECTED, Event.REDIRECTED): _REDIRECTED,
    (Condition.CONNECTED, Event.STALLED): _STALLED,
    (Condition.CONNECTED, Event.THROTTLED): _THROTTLED,
    (Condition.THROTTLED, Event.LOST): _LOST,
    (Condition.THROTTLED, Event.REDIRECTED): _REDIRECTED,
    (Condition.THROTTLED, Event.STALLED): _STALLED,
    (Condition.LOST, Event.CONNECTED): _RECOVERED,
    (Condition.LOST, Event.NONE_ANSWERS): _UNREACHABLE,
    (Condition.LOST, Event.NONE_HAS_QUORUM): _NO_QUORUM,
    (Condition.UNREACHABLE, Event.CONNECTED): _RECOVERED,
    (Condition.UNREACHABLE, Event.NONE_HAS_QUORUM): _NO_QUORUM,
    (Condition.NO_QUORUM, Event.CONNECTED): _RECOVERED,
    (Condition.NO_QUORUM, Event.NONE_ANSWERS): _UNREACHABLE,
    (Condition.STALLED, Event.CONNECTED): _RECOVERED,
    (Condition.STALLED, Event.LOST): _LOST,
    (Condition.STALLED, Event.REDIRECTED): _REDIRECTED,
    (Condition.ENDED, Event.CONNECTED): _RECOVERED,
    (Condition.ENDED, Event.NONE_ANSWERS): _UNREACHABLE,
}


class ConnectionLog:
    """Logs the changes of one client's connection, and reminds of an outage that lasts.

    Attributes:
        condition: the condition that the last line has reported.
        due: time of the next reminder in monotonic seconds; infinity while the client is connected.
        reconnects: number of connections after a lost one.
        failovers: number of these connections that are to another gateway than before.
    """

    def __init__(self, logger: logging.Logger, subject: str, now: float) -> None:
        """Begin to search for a gateway at `now`, in monotonic seconds. Each line begins with `subject`; "" turns logging off."""
        self.condition = Condition.SEARCHING
        self.reconnects = self.failovers = 0
        self._logger = logger
        self._subject = subject
        self._where = ""  # the gateway of the last connection
        self._waited = 0  # the highest number of waiting records in this outage
        self._begin_outage(now)

    def _begin_outage(self, since: float) -> None:
        self._since = since
        self._interval = _INTERVAL_S_MIN
        self.due = since + self._interval

    @property
    def connected(self) -> bool:
        """True if the last line has reported a connection that works."""
        return self.condition in _WORKING

    def outage(self, now: float) -> float:
        """Return the seconds since the outage began; 0 while the client is connected."""
        return 0.0 if self.connected else max(0.0, now - self._since)

    def end(self, now: float) -> None:
        """Begin an outage at `now` without a line, because the client was closed or the gateways refuse it."""
        if self.connected:
            self._begin_outage(now)
        self.condition = Condition.ENDED

    def on(self, event: Event, now: float, cause: str = "", *, where: str = "", since: float | None = None) -> None:
        """Log the change that an event makes; nothing if it makes none.

        Args:
            event: what happened to the connection.
            now: time of the event in monotonic seconds.
            cause: reason of a failure, or the result at each address.
            where: the gateway of a new connection.
            since: start of the outage, if the outage began before its first event.
        """
        found = LINES.get((self.condition, event))
        if found is None:
            return
        before, was_connected = self.condition, self.connected
        self.condition, level, text = found
        if was_connected and not self.connected:
            self._begin_outage(now if since is None else since)
            self._schedule(now)
        if event is Event.CONNECTED:
            # The connection of a stalled client is still the old one, and a searching client had none.
            self.reconnects += before not in (Condition.SEARCHING, Condition.STALLED)
            self.failovers += self._where not in ("", where)
            self._where, self.due = where, inf
        waited = f"; {records_text(self._waited)} waited" if self._waited else ""
        self._waited = 0 if self.connected else self._waited
        self._log(level, text.format(where=self._where, cause=cause, seconds=_seconds(now - self._since), waited=waited))

    def remind(self, now: float, waiting: int = 0, results: str = "") -> None:
        """Log that the client is still waiting, if a reminder is due.

        Args:
            now: time in monotonic seconds.
            waiting: number of records that wait for the end of the outage.
            results: the last result at each address.
        """
        self._waited = max(self._waited, waiting)
        if now >= self.due:
            waits = f"; {records_text(waiting)} waiting" if waiting else ""
            self._log(_WARNING, f"still waiting after {_seconds(now - self._since)} s{waits}; {results}")
            self._schedule(now)

    def _schedule(self, now: float) -> None:
        """Set `due` to the first reminder after `now`, at doubled intervals."""
        while self.due <= now:
            self._interval = min(2 * self._interval, _INTERVAL_S_MAX)
            self.due += self._interval

    def _log(self, level: int, text: str) -> None:
        if self._subject:
            self._logger.log(level, "%s: %s", self._subject, text)


def _seconds(seconds: float) -> str:
    return f"{seconds:.{0 if seconds >= 10 else 1 if seconds >= 1 else 2}f}"
