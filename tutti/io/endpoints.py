"""Endpoints: the addresses of gateways that a client can try, in order, and the last result at each address."""

from __future__ import annotations

import errno
import logging
import os
import random
import time
from collections.abc import Callable, Collection, Iterable, Mapping

from tutti import limits
from tutti.common.gateway_url import SCHEME, Address, parse_url
from tutti.errors import ConfigError

#: The result of a successful connection.
CONNECTED = "connected"
#: The result of an attempt at a port where no process listens.
REFUSED = os.strerror(errno.ECONNREFUSED).lower()
#: The beginning of the result for a host name that the name service does not know.
UNKNOWN_HOST = "the host name is unknown"
#: The result while the first attempt at an address lasts.
_NO_ANSWER_YET = "no answer yet"
#: Advice for an address that accepts connections and stays silent.
SILENT_ADVICE = "the process may be stopped or its machine overloaded; check the process, or name another gateway"
#: The beginning of the result for a host that does not answer, after a probe of its port.
NO_CONNECTION = "no connection within"
_UNREACHABLE = "Check the network, the firewall, and the hosts that do not answer"
#: Advice for the operator, by the beginning of a result.
_ADVICE = {
    REFUSED: "Start the gateway where connections are refused, or correct the port",
    UNKNOWN_HOST: "Correct the host name, or add it to the name service",
    NO_CONNECTION: _UNREACHABLE,
    os.strerror(errno.EHOSTUNREACH).lower(): _UNREACHABLE,
    os.strerror(errno.ENETUNREACH).lower(): _UNREACHABLE,
}
LOG = logging.getLogger("tutti.client")
# Time of the last attempt at each address that did not answer, for the order of new `Endpoints` of this process.
_silent_at: dict[Address, float] = {}


class Endpoints:
    """Addresses in the order of the url, followed by the addresses of discovered gateways.

    The addresses of the url never change. The addresses of discovered gateways change when gateways move, join or leave. Each
    client tries the discovered addresses in its own random order, so that the clients of a failed gateway spread over the other
    gateways.

    An address that does not answer must not use up the time of the others. In the first round, each address except the last has
    only `HEAD_START_US`. If an address did not answer recently, new clients of this process try this address last.
    """

    def __init__(
        self,
        addresses: Iterable[Address],
        chance: Callable[[], float] = random.random,
        gateways: Mapping[str, str] | None = None,
        last: Collection[Address] = (),
    ) -> None:
        """Begin with the first address; `chance` returns random numbers in [0, 1).

        Args:
            addresses: addresses of the url.
            chance: source of the random order of discovered addresses.
            gateways: gateways of the group that are already known, as in `update`.
            last: addresses to try after all others.
        """
        self._from_url = list(addresses)
        since = time.monotonic() - limits.SILENT_ADDRESS_US / 1e6
        self._last = frozenset(last) | {address for address, at in list(_silent_at.items()) if at > since}
        self._named: dict[str, list[Address]] = {}  # gateway name -> addresses
        self._discovered: list[Address] = []
        self._silent: frozenset[Address] = frozenset()
        self._random = chance
        self.addresses = list(self._from_url)
        self._index = 0
        self._results: dict[Address, str] = {}
        self._wrong_ports: set[Address] = set()
        self._failed_in_a_row = 0
        self.update(gateways or {}, authoritative=bool(gateways))
        self._index = 0

    @property
    def current(self) -> Address:
        """The address of the current connection or connection attempt."""
        return self.addresses[self._index % len(self.addresses)]

    def record(self, text: str) -> None:
        """Store the last result at the current address."""
        self._results[self.current] = text
        if text == CONNECTED:
            _silent_at.pop(self.current, None)

    def begin_attempt(self) -> float:
        """Record that an attempt at the current address begins. Return its time limit in seconds."""
        self._results.setdefault(self.current, _NO_ANSWER_YET)
        return (limits.HEAD_START_US if self._others_untried else limits.ADDRESS_TIMEOUT_US) / 1e6

    def end_attempt(self) -> str:
        """Record that the current address did not answer in time.

        Returns:
            The result for error messages, or "" if a probe of the port should determine the result, before the next round begins.
        """
        if len(_silent_at) >= limits.ADDRESSES_MAX:
            _silent_at.pop(next(iter(_silent_at)), None)
        _silent_at[self.current] = time.monotonic()
        return f"no answer within {limits.HEAD_START_US / 1e6:g} s: {SILENT_ADVICE}" if self._others_untried else ""

    @property
    def _others_untried(self) -> bool:
        return self._failed_in_a_row < len(self.addresses) - 1

    def reset_delay(self) -> None:
        """Reset the retry delay, because the current gateway works."""
        self._failed_in_a_row = 0

    @property
    def rounds(self) -> int:
        """The number of complete rounds of failures since the last success."""
        return self._failed_in_a_row // len(self.addresses)

    def advance(self, reason: str, wrong: bool = False) -> float:
        """Change to the next address after a failure. `wrong` is True if the address is certainly not a client port.

        Returns:
            Seconds to wait before the next attempt: 0 in the first round, then longer in each round, with a random part. Without
            the random part, all clients of a gateway would retry at the same time.
        """
        self.record(reason)
        if wrong:
            self._wrong_ports.add(self.current)
        self._index += 1
        self._failed_in_a_row += 1
        rounds = self.rounds
        if not rounds:
            return 0.0
        # Bound the shift, because the number of rounds grows without limit while no gateway is available.
        longest_us = min(limits.RETRY_US_MIN << min(rounds, 16), limits.RETRY_US_MAX)
        return longest_us / 1e6 * (1 - self._random() / 2)

    def update(self, gateways: Mapping[str, str], silent: Collection[str] = (), authoritative: bool = True) -> None:
        """Update the addresses with the list of gateways in a gateway's answer.

        Args:
            gateways: address of each gateway, by name.
            silent: names of gateways from which the answering gateway receives no messages, and which clients therefore try last.
            authoritative: False if the answering gateway is outside of the primary view; its answer may be outdated, so it can
                only add gateways.
        """
        if authoritative:
            self._named = {name: found for name, found in self._named.items() if name in gateways}
        for name, url in gateways.items():
            if authoritative or name not in self._named:
                found = _parsed(name, url)
                if found:
                    self._named[name] = found
        quiet = {address: name in silent for name, found in self._named.items() for address in found}
        self._silent = frozenset(address for address, silent_too in quiet.items() if silent_too)
        # The addresses of the url come first, so they do not count as discovered.
        for address in self._from_url:
            quiet.pop(address, None)
        discovered = [address for address in self._discovered if address in quiet]
        fresh = [address for address in quiet if address not in discovered]
        for address in fresh:
            discovered.insert(int(self._random() * (len(discovered) + 1)), address)
        # The sort is stable, so silent gateways move to the end, and all other addresses keep their order.
        discovered.sort(key=quiet.__getitem__)
        self._discovered = discovered[: limits.ADDRESSES_MAX]
        self._update_order()

    def _update_order(self) -> None:
        current = self.current
        self.addresses = sorted([*self._from_url, *self._discovered], key=self._last.__contains__)
        if current not in self.addresses:
            self.addresses.append(current)  # keep the address of the current connection, even if its gateway has a new one
        self._index = self.addresses.index(current)
        self._results = {address: text for address, text in self._results.items() if address in self.addresses}
        # Forget the results of removed addresses, because a different process may use the address when it returns.
        self._wrong_ports.intersection_update(self.addresses)

    @property
    def responsive(self) -> list[Address]:
        """The current address, and all others except those of silent gateways."""
        return [address for address in self.addresses if address == self.current or address not in self._silent]

    def summary(self) -> str:
        """Return the last result at each address, as text for error messages."""
        return "; ".join(f"{address}: {text}" for address, text in self.results().items())

    def advice(self) -> str:
        """Return what the operator can do about the last results, as the end of an error message; empty if they contain it."""
        results = self._results.values()
        found = [advice for begin, advice in _ADVICE.items() if any(result.startswith(begin) for result in results)]
        return "".join(f". {advice}" for advice in dict.fromkeys(found))

    def nothing_listens(self) -> bool:
        """Return True if the last attempt at each address found no process: the port refuses, or the host name is unknown."""
        return all(result.startswith((REFUSED, UNKNOWN_HOST)) for result in self.results().values())

    def results(self) -> dict[Address, str]:
        """Return the last result at each address."""
        return {address: self._results.get(address, "not tried yet") for address in self.addresses}

    def only_wrong_ports(self) -> bool:
        """Return True if every address is known to be a port other than a client port."""
        return self._wrong_ports.issuperset(self.addresses)


def _parsed(name: str, url: str) -> list[Address]:
    try:
        return parse_url(url if url.startswith(SCHEME) else SCHEME + url)
    except ConfigError as error:
        LOG.warning("gateway %s has a malformed address: %s", name, error)
        return []
