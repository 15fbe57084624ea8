"""The route: the gateways that a client may turn to, each in its turn, and what was met at each."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping

from gateway.client.url import SCHEME, Address, parse_url
from gateway.core import limits
from gateway.errors import ConfigError

LOG = logging.getLogger("tutti.client")


class Route:
    """Addresses in the order of the url, then those that gateways named."""

    def __init__(self, addresses: Iterable[Address]) -> None:
        """Begin with the first."""
        self.addresses = list(addresses)
        self._at = 0
        self._met: dict[Address, str] = {}
        self._wrong: set[Address] = set()
        self._failed_in_a_row = 0

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

        Returns how long to wait first, seconds: nothing before everyone was asked, longer each time round.
        """
        self.met(reason)
        if wrong:
            self._wrong.add(self.present)
        self._at += 1
        self._failed_in_a_row += 1
        rounds = self.rounds
        return min(limits.RETRY_US_MIN * 2 ** min(rounds, 16), limits.RETRY_US_MAX) / 1e6 if rounds else 0.0

    def learn(self, gateways: Mapping[str, str]) -> None:
        """Other gateways of the group (name to address), as one of them named them."""
        present = self.present
        for name, url in gateways.items():
            try:
                found = parse_url(url if url.startswith(SCHEME) else SCHEME + url)
            except ConfigError as error:
                LOG.warning("gateway %s has an address that is none: %s", name, error)
                continue
            self.addresses.extend(address for address in found if address not in self.addresses)
        del self.addresses[limits.ADDRESSES_MAX :]
        self._at = self.addresses.index(present)

    def told(self) -> str:
        """What was met at each address, for an error."""
        return "; ".join(f"{address}: {self._met.get(address, 'no answer yet')}" for address in self.addresses)

    def only_wrong_ports(self) -> bool:
        """Whether every address is known to be something else than a gateway's client port."""
        return self._wrong.issuperset(self.addresses)
