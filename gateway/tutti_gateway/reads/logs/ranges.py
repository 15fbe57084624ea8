"""Resolves the range in a ticket to offsets of the log, or raises an error that explains why the range is invalid."""

from __future__ import annotations

from collections.abc import Callable
from difflib import get_close_matches
from typing import NamedTuple

from tutti import limits
from tutti.data.gateway_states import CUT_OFF
from tutti.log.read.reader import DecidedEnd, LogReader
from tutti_gateway.reads.logs.frontier_watch import FrontierWaiter
from tutti_gateway.reads.protocol.flight_errors import ReadError
from tutti_gateway.reads.protocol.tickets import AtTime, Position, Request, Ticket


class ResolvedRange(NamedTuple):
    """Offsets [start, end) to read, without an end if `end` is None. `frontier` is the frontier that the answer contains."""

    start: int
    end: int | None
    frontier: DecidedEnd


class RangeResolver:
    """Resolves ranges of one log."""

    def __init__(
        self,
        reader: LogReader,
        watch: FrontierWaiter[DecidedEnd],
        state: Callable[[], str],
        confirm: Callable[[], bool] | None = None,
    ) -> None:
        """Create a resolver for the log of `reader`.

        Args:
            reader: reader of the log.
            watch: waits until the frontier of the log moves.
            state: returns the state of the gateway.
            confirm: confirms the frontier with a majority (see `GatewayLink.confirm`), or is None for a lane.
        """
        self._confirm = confirm
        self._reader = reader
        self._watch = watch
        self._state = state

    def frontier(self, caller: Request, is_cancelled: Callable[[], bool]) -> DecidedEnd:
        """Return the frontier of the log, which is never below a frontier that the caller has seen (C7).

        The call waits briefly for a frontier that is still too low, unless the gateway has no majority. For a linearizable request,
        the frontier covers all records that were committed before the request.

        Raises:
            ReadError: `other_log`, `behind`.
        """
        # The log is checked before the confirmation: a wrong log is permanent, and the confirmation may take two seconds.
        self.check_log(caller)
        if caller.linearizable:
            self.require_confirmed(caller.seen)
        seen = caller.seen
        frontier = self._watch.now()
        # A gateway without a majority receives no records, so a wait would only delay the refusal.
        if frontier.offset < seen and self._state() not in CUT_OFF:
            frontier = self._watch.wait(seen - 1, limits.BEHIND_WAIT_US_MAX, is_cancelled)
        if frontier.offset < seen:
            raise ReadError(
                "behind",
                f"this gateway's frontier is {frontier.offset}, but the reader has seen {seen}: "
                "ask another gateway of the group, or try again later",
                frontier=frontier.offset,
                seen=seen,
            )
        return frontier

    def confirmed(self) -> bool:
        """True if the gateway confirms that its frontier covers all records committed so far.

        Raises:
            ReadError: `malformed`, for a lane.
        """
        if self._confirm is None:
            raise ReadError("malformed", "a lane has no linearizable reads, because no majority decides it: omit `linearizable`")
        return self._confirm()

    def require_confirmed(self, seen: int = 0, why: str = "") -> None:
        """Raise an error if the gateway cannot confirm its frontier, because it must not answer the caller then.

        Args:
            seen: highest frontier that the caller has seen.
            why: first part of the error message, such as a position above the frontier; empty for no such part.

        Raises:
            ReadError: with code `behind`.
        """
        if not self.confirmed():
            frontier = self._watch.now().offset
            raise ReadError(
                "behind",
                f"{why}{'; but ' if why else ''}this gateway ({self._state()}) cannot confirm its frontier {frontier} with a "
                "majority of the group, so other gateways may have more: ask another gateway, or try again later",
                frontier=frontier,
                seen=seen,
            )

    def check_log(self, caller: Request) -> None:
        """Refuse a caller that reads another log, because offsets of that log mean nothing in this one.

        Raises:
            ReadError: `other_log`.
        """
        log = self._reader.log
        # The first request of a caller names no log, and a gateway that has not joined a group yet has no log either.
        if caller.log and log and caller.log != log:
            raise ReadError(
                "other_log",
                f"this gateway serves log {log}, but the reader asks for log {caller.log}: "
                "the url names gateways of different groups, or the log was replaced",
                log=log,
            )

    def resolve(self, ticket: Ticket, is_cancelled: Callable[[], bool]) -> ResolvedRange:
        """Return the range that a ticket requests.

        Raises:
            ReadError: with code `other_log`, `behind`, `below_start`, `beyond_frontier`, `malformed` (end below start),
                `unknown_topic`.
        """
        frontier = self.frontier(ticket, is_cancelled)
        # Topics are checked after the wait for `seen`, because records that arrive during the wait may create the topic.
        self.check_topics(ticket)
        if not ticket.follow:
            return ResolvedRange(*self.offsets(ticket.start, ticket.end, frontier), frontier)
        start = self.offset(ticket.start, frontier)
        # A followed range may end above the frontier, so only its start is checked.
        self._check("start", start, frontier)
        end = None if ticket.end is None else self.offset(ticket.end, frontier)
        if end is not None and end < start:
            raise _reversed_range(start, end)
        return ResolvedRange(start, end, frontier)

    def offsets(self, start: Position, end: Position | None, frontier: DecidedEnd) -> tuple[int, int]:
        """Return the offsets of a committed range. Without an end, the range ends at the frontier.

        Raises:
            ReadError: with code `below_start`, `beyond_frontier`, or `malformed` if the end is below the start.
        """
        low = self.offset(start, frontier)
        self._check("start", low, frontier)
        high = frontier.offset if end is None else self.offset(end, frontier)
        self._check("end", high, frontier)
        if high < low:
            raise _reversed_range(low, high)
        return low, high

    def offset(self, position: Position, frontier: DecidedEnd) -> int:
        """Return the offset of a position, which may be outside of the log."""
        if isinstance(position, AtTime):
            return self._reader.offset_for_time(position.time_us)
        if position == "earliest":
            return self._reader.start
        if position == "latest":
            return frontier.offset
        return int(position)

    def _check(self, which: str, offset: int, frontier: DecidedEnd) -> None:
        start = self._reader.start
        if offset < start:
            raise ReadError(
                "below_start",
                f"the range's {which} is offset {offset}, but this log begins at {start}: earlier records were removed; "
                f'use {start} or "earliest"',
                start=start,
                frontier=frontier.offset,
            )
        hint = "; with `follow` a range may end there" if which == "end" else ""
        self.check_not_beyond(f"the range's {which} is offset {offset}", offset, frontier, hint)

    def check_not_beyond(self, what: str, offset: int, frontier: DecidedEnd, hint: str = "") -> None:
        """Refuse an offset beyond the frontier: permanently if the frontier is confirmed, else with `behind`.

        Raises:
            ReadError: with code `beyond_frontier`, or `behind` if other gateways may have more records.
        """
        if offset <= frontier.offset:
            return
        if self._confirm is not None:
            self.require_confirmed(0, f"{what}, but the log is committed up to {frontier.offset} here")
            # The confirmation may have moved the frontier, so the offset is compared once more.
            frontier = self._watch.now()
        if offset > frontier.offset:
            raise ReadError(
                "beyond_frontier",
                f'{what}, but the log is committed up to {frontier.offset}: use at most {frontier.offset}, or "latest"{hint}',
                start=self._reader.start,
                frontier=frontier.offset,
            )

    def check_topics(self, ticket: Ticket) -> None:
        """Refuse topics that do not exist, unless the ticket permits absent topics.

        Raises:
            ReadError: with code `unknown_topic`, or `behind` if other gateways may know the topics.
        """
        # A follower may wait for a topic that does not exist yet.
        if ticket.topics is None or ticket.follow or ticket.absent_ok:
            return
        if self._has_topics(ticket.topics):
            return
        if self._confirm is not None:
            self.require_confirmed(0, f"some of the topics {', '.join(ticket.topics)[:200]} are unknown here")
            if self._has_topics(ticket.topics):
                return
        # Load the whole state of the log only for this error, which has the names of all topics: `_has_topics` is much cheaper.
        known = {topic.name for topic in self._reader.state().topics.values()}
        for name in ticket.topics:
            if name not in known:
                near = get_close_matches(name, known, 1)
                # Names of other topics belong in the hint, which `hints_for` removes for callers that may not read everything.
                hint = f"did you mean {near[0]!r}?" if near else _topic_list(sorted(known))
                raise ReadError("unknown_topic", f"this log has no topic {name!r}", hint, name=name)

    def _has_topics(self, names: tuple[str, ...]) -> bool:
        return len(self._reader.topic_numbers(names)) == len(set(names))


def _reversed_range(start: int, end: int) -> ReadError:
    return ReadError("malformed", f"the range [{start}, {end}) ends before it begins")


def _topic_list(names: list[str]) -> str:
    if not names:
        return "it has no topics yet; to wait for the first records of this topic, follow it (`tutti tail --follow`)"
    more = f" and {len(names) - 10} more" if len(names) > 10 else ""
    return f"its topics are {', '.join(names[:10])}{more}"
