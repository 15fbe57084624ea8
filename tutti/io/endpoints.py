"""The route: the gateways that a client may turn to, each in its turn, and what was met at each."""

from __future__ import annotations

import logging
import random
from collections.abc import Callable, Collection, Iterable, Mapping

from tutti import limits
from tutti.common.address import SCHEME, Address, parse_url
from tutti.errors import ConfigError

#: What is met where all goes well.
CONNECTED = "connected"
LOG = logging.getLogger("tutti.client")


class Route:
    """Addresses in the order of the url, then those that gateways named.

    What the url names stays: it is the user's word. What gateways named follows them when they move, are added or removed. Each
    client has those in an order of its own, so that not all of a gateway that died go to the same one.
    """

    def __init__(
        self,
        addresses: Iterable[Address],
        chance: Callable[[], float] = random.random,
        gateways: Mapping[str, str] | None = None,
        last: Collection[Address] = (),
    ) -> None:
        """Begin with the first; `chance` gives random numbers in [0, 1).

        Args:
            addresses: those of the url.
            chance: where the order of the others comes from.
            gateways: what is known of the group already, as in `learn`.
            last: addresses whose turn comes after all others'.
        """
        self._own = list(addresses)
        self._last = frozenset(last)
        self._named: dict[str, list[Address]] = {}  # by name of the gateway
        self._learned: list[Address] = []
        self._quiet: frozenset[Address] = frozenset()
        self._chance = chance
        self.addresses = list(self._own)
        self._at = 0
        self._met: dict[Address, str] = {}
        self._wrong: set[Address] = set()
        self._failed_in_a_row = 0
        self.learn(gateways or {}, sure=bool(gateways))
        self._at = 0

    @property
    def present(self) -> Address:
        """The address whose turn it is."""
        return self.addresses[self._at % len(self.addresses)]

    def met(self, text: str) -> None:
        """Note what was met at the present address."""
        self._met[self.present] = text

    def went_well(self) -> None:
        """The present gateway does its work: trouble that follows is new."""
        self._failed_in_a_row = 0

    @property
    def rounds(self) -> int:
        """How often everyone was tried in vain, since something went well."""
        return self._failed_in_a_row // len(self.addresses)

    def move_on(self, reason: str, wrong: bool = False) -> float:
        """The present address is of no use now (`wrong`: it never will be); the next one's turn.

        Returns how long to wait first, seconds: nothing before everyone was asked, then longer each time round. Those who wait for
        the same gateways do not come all at once.
        """
        self.met(reason)
        if wrong:
            self._wrong.add(self.present)
        self._at += 1
        self._failed_in_a_row += 1
        rounds = self.rounds
        if not rounds:
            return 0.0
        longest_us = min(limits.RETRY_US_MIN << min(rounds, 16), limits.RETRY_US_MAX)
        return longest_us / 1e6 * (1 - self._chance() / 2)

    def learn(self, gateways: Mapping[str, str], silent: Collection[str] = (), sure: bool = True) -> None:
        """The gateways of the group (name to address), as one of them named them.

        Args:
            gateways: each name with its address.
            silent: names of those that it does not hear: their turn comes last.
            sure: whether it can know: one outside of the view that decides may not have heard who moved, came or went, so that
                its word adds to what others said and takes nothing back.
        """
        if sure:
            self._named = {name: found for name, found in self._named.items() if name in gateways}
        for name, url in gateways.items():
            if sure or name not in self._named:
                found = _parsed(name, url)
                if found:
                    self._named[name] = found
        quiet = {address: name in silent for name, found in self._named.items() for address in found}
        self._quiet = frozenset(address for address, silent_too in quiet.items() if silent_too)
        for address in self._own:
            quiet.pop(address, None)
        learned = [address for address in self._learned if address in quiet]
        fresh = [address for address in quiet if address not in learned]
        for address in fresh:
            learned.insert(int(self._chance() * (len(learned) + 1)), address)
        learned.sort(key=quiet.__getitem__)
        self._learned = learned[: limits.ADDRESSES_MAX]
        self._arrange()

    def _arrange(self) -> None:
        present = self.present
        self.addresses = sorted([*self._own, *self._learned], key=self._last.__contains__)
        if present not in self.addresses:
            self.addresses.append(present)  # somebody is there, whoever it is by now
        self._at = self.addresses.index(present)
        self._met = {address: text for address, text in self._met.items() if address in self.addresses}
        self._wrong.intersection_update(self.addresses)

    @property
    def heard(self) -> list[Address]:
        """The present one, and those that no gateway called silent when it was asked last."""
        return [address for address in self.addresses if address == self.present or address not in self._quiet]

    def told(self) -> str:
        """What was met at each address, for an error."""
        return "; ".join(f"{address}: {text}" for address, text in self.all_met().items())

    def all_met(self) -> dict[Address, str]:
        """What was met last at each address."""
        return {address: self._met.get(address, "no answer yet") for address in self.addresses}

    def only_wrong_ports(self) -> bool:
        """Whether every address is known to be something else than a gateway's client port."""
        return self._wrong.issuperset(self.addresses)


def _parsed(name: str, url: str) -> list[Address]:
    try:
        return parse_url(url if url.startswith(SCHEME) else SCHEME + url)
    except ConfigError as error:
        LOG.warning("gateway %s has an address that is none: %s", name, error)
        return []
