"""Who is at the other end of each connection that came in: as which gateway it is known here, and who is refused.

Names are numbers in the log, and the log of the other end may be ahead of this one's, or blank. The number is the one that this
log has for the name, or the one that the gateway says itself, if both have the same log and that number is higher.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

from tutti_gateway.core import limits
from tutti_gateway.transport.handshake import copied, differences, refusal
from tutti_gateway.transport.interface import Introduction


def number_of(name: str, said: int, numbers: Mapping[str, int], me: int) -> int:
    """Return the number of a gateway, 0 if it has none here.

    A log gives each number once, and later numbers are higher. A gateway that says a higher number than this log has for its name
    was removed and added again in frames that are not here yet. One that says a lower number has not read that itself.

    Args:
        name: of the gateway.
        said: the number that it says it has in the log of this gateway, 0 if it has another log or none.
        numbers: of the gateways that this log names; a number in it belongs to no other gateway.
        me: the number of this gateway.
    """
    named = numbers.get(name, 0)
    return said if said > named and said != me and said not in numbers.values() else named


class Verdict(NamedTuple):
    """What becomes of an introduction: `number` as which it is known; `connect` if this log does not have that number; what an
    operator must know all the same (`reason`); or without a number why it is refused, for the log here and for the one
    there (`told`).
    """

    number: int = 0
    connect: bool = False
    reason: str = ""
    told: str = ""


class Guest:
    """One connection's other end. `number` is 0 while its messages are not taken."""

    __slots__ = ("heard_us", "incarnation", "introduction", "met_us", "name", "number")

    def __init__(self, introduction: Introduction, number: int, heard_us: int) -> None:
        self.introduction = introduction
        self.name = introduction.gateway
        self.incarnation = introduction.incarnation
        self.number = number
        self.met_us = self.heard_us = heard_us


class Guests:
    """All of them, by the routing id of their connection."""

    def __init__(self, me: Introduction, clock_us: Callable[[], int]) -> None:
        self.me = me
        self._clock_us = clock_us
        self._guests: dict[bytes, Guest] = {}
        self._numbers: dict[str, int] = {}

    def __iter__(self) -> Iterator[Guest]:
        """All that introduced themselves and were not refused; those with `number` 0 are not taken."""
        return iter(self._guests.values())

    def known(self, routing: bytes) -> bool:
        """Whether what comes by the connection is taken."""
        guest = self._guests.get(routing)
        return guest is not None and guest.number != 0

    def clear(self) -> None:
        """Every connection is gone."""
        self._guests.clear()

    def named(self, numbers: Mapping[str, int]) -> None:
        """The names that this gateway was told of."""
        self._numbers = dict(numbers)
        self.look_again()

    def look_again(self) -> None:
        """This gateway is another than before, or knows others: so are its guests."""
        for guest in self._guests.values():
            guest.number = self._number(guest.introduction) if self._rejected(guest.introduction) is None else 0

    def unnamed(self) -> dict[int, tuple[str, str]]:
        """Who is taken by a number that this log does not name, and talks: number -> (name, address)."""
        since = self._clock_us() - limits.GUEST_SILENT_US
        guests = [guest for guest in self._guests.values() if guest.number and not self._is_named(guest.number)]
        return {guest.number: (guest.name, guest.introduction.address) for guest in guests if guest.heard_us > since}

    def differing(self) -> dict[str, str]:
        """What those that talk here are configured with otherwise than this gateway: name -> what, of who is so."""
        since = self._clock_us() - limits.GUEST_SILENT_US
        guests = [guest for guest in self._guests.values() if guest.number and guest.heard_us > since]
        guests.sort(key=lambda guest: guest.met_us)  # of a process and the one before it the later word
        found = {guest.name: differences(self.me, guest.introduction) for guest in guests}
        return {name: what for name, what in found.items() if what}

    def heard(self, routing: bytes) -> Guest | None:
        """Something came by the connection; who that is, None if it has not introduced itself."""
        guest = self._guests.get(routing)
        if guest is not None:
            guest.heard_us = self._clock_us()
        return guest

    def met(
        self, routing: bytes, introduction: Introduction, broke_us: int, stands: Callable[[bytes], bool] = lambda _: True
    ) -> Verdict:
        """Somebody introduces itself by that connection.

        Args:
            routing: of the connection that it came by.
            introduction: what it says.
            broke_us: when this gateway's own connection to the gateway of that name broke last; a process that was met before
                that is taken to have ended.
            stands: whether a connection that came in still does; a process whose connection ended has ended, whenever it was met:
                what it sent may have been read later.
        """
        rejected = self._rejected(introduction)
        if rejected is not None:
            self._guests.pop(routing, None)
            return rejected
        now = self._clock_us()
        number = self._number(introduction)
        if number:
            twin = self._twin(routing, introduction, broke_us, stands)
            if twin is not None:
                self._guests.pop(routing, None)
                reason = copied(twin.introduction, introduction)
                return Verdict(reason=reason, told=reason)
        if routing not in self._guests and len(self._guests) >= limits.MESH_INTRODUCED_MAX:
            del self._guests[min(self._guests, key=lambda one: self._guests[one].heard_us)]
        self._guests[routing] = Guest(introduction, number, now)
        if number:
            return Verdict(number, not self._is_named(number), differences(self.me, introduction))
        reason = f"is no member of group {self.me.group!r}: `tutti members add {introduction.gateway} HOST:PORT` takes it in"
        # In full for both: the other gateway tells it of this one, by whose name "it" would be taken for this one.
        return Verdict(reason=f"{introduction.gateway} at {introduction.address} {reason}", told=f"{introduction.gateway} {reason}")

    def _rejected(self, other: Introduction) -> Verdict | None:
        """Why one is not taken whatever its number; None if it is."""
        reason = refusal(self.me, other)
        return Verdict(reason=reason, told=reason) if reason else None

    def _number(self, introduction: Introduction) -> int:
        """The number of a gateway, 0 if it has none here."""
        same_log = bool(self.me.log) and introduction.log == self.me.log
        return number_of(introduction.gateway, introduction.number if same_log else 0, self._numbers, self.me.number)

    def _is_named(self, number: int) -> bool:
        return number in self._numbers.values()

    def _twin(self, routing: bytes, introduction: Introduction, broke_us: int, stands: Callable[[bytes], bool]) -> Guest | None:
        """Another process that speaks for the same gateway, and did a moment ago."""
        since = self._clock_us() - limits.DUPLICATE_SILENT_US
        for other_routing, guest in self._guests.items():
            other = guest.introduction
            if (
                other_routing != routing
                and other.gateway == introduction.gateway
                and other.process != introduction.process
                and guest.met_us > broke_us
                and guest.heard_us > since
                and stands(other_routing)
            ):
                return guest
        return None
