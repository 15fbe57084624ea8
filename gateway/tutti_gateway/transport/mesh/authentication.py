"""The door of the group port: with keys, connections between gateways are encrypted (CURVE, RFC 26) and only listed keys come in.

A gateway is then known by its key: the name that it introduces itself by has to be the one that the key is listed under.
"""

from __future__ import annotations

from collections.abc import Callable

from tutti import limits
from tutti.zmtp import z85
from tutti.zmtp.curve import Calling, pair_of
from tutti_gateway.transport.keys import Keyring
from tutti_gateway.transport.mesh.peer_link import Link


class Door:
    """Lets in gateways whose key is listed. Owned by the thread that owns the mesh.

    Attributes:
        own: this gateway's pair of keys.
    """

    def __init__(self, keyring: Keyring, clock_us: Callable[[], int], tell: Callable[[str, str], None]) -> None:
        """Let in who is listed in `keyring`.

        Args:
            keyring: this gateway's keys, and those of the others.
            clock_us: a monotonic clock, us.
            tell: an operator must know it: from which host, and what.
        """
        self._keyring = keyring
        self._clock_us = clock_us
        self._tell = tell
        self._looked_us = clock_us()
        self._let_in = self._turned_away = 0  # connections
        self.own = pair_of(keyring.own.public, keyring.own.secret)

    def admits(self, host: str, key: bytes) -> bool:
        """Whether a connection from that host is let in with that public key; without one it is not."""
        if key and self.name_of(key, look=True):
            self._let_in += 1
            return True
        self._turned_away += 1
        self._tell(host, f"a connection to the group port was turned away: {_reason(key)}")
        return False

    def name_of(self, key: bytes, *, look: bool = False) -> str:
        """The gateway whose public key that is, empty where it is not listed; `look` whether it is by now."""
        public = z85.encode(key)
        found = self._keyring.name_of(public)
        if not found and look and self.refresh():
            found = self._keyring.name_of(public)
        return found

    def key_of(self, gateway: str) -> str:
        """The listed key of a gateway, empty if there is none."""
        return self._keyring.public_of(gateway)

    def calling(self, link: Link, identity: bytes) -> Calling:
        """The handshake with the gateway of a link and no other."""
        return Calling([z85.decode(link.key)], self.own, identity)

    @property
    def trouble(self) -> str:
        """What is wrong with the file of public keys, empty if nothing is."""
        return self._keyring.trouble

    def refresh(self) -> bool:
        """Look at the file of public keys, once in a while; whether other keys are listed now."""
        now_us = self._clock_us()
        if now_us - self._looked_us < limits.KEYS_CHECK_US:
            return False
        self._looked_us = now_us
        return self._keyring.refresh()

    def facts(self) -> dict[str, int]:
        """For the status: connections."""
        return {"let_in": self._let_in, "turned_away": self._turned_away}


def _reason(key: bytes) -> str:
    if not key:
        return "it came without a key: give it keys too (`security.secret_key`, `security.public_keys`)"
    return (
        f"nobody of this group is listed with the public key that it came with, {z85.encode(key)}: if it is a gateway of this "
        "group, write its key into the file that `security.public_keys` names, on every host"
    )
