"""Authentication on the group port: with keys, connections are encrypted (CURVE, RFC 26), and only listed keys are accepted.

A key identifies its gateway. The name in an introduction must be the name under which the key is listed.
"""

from __future__ import annotations

from collections.abc import Callable

from tutti import limits
from tutti.zmtp import z85
from tutti.zmtp.curve import CurveClientHandshake, key_pair_from_text
from tutti_gateway.transport.keys import Keyring
from tutti_gateway.transport.mesh.peer_state import PeerLink


class KeyAuthenticator:
    """Accepts gateways with listed keys. Owned by the mesh's thread.

    Attributes:
        own: key pair of this gateway.
    """

    def __init__(self, keyring: Keyring, clock_us: Callable[[], int], warn: Callable[[str, str], None]) -> None:
        """Accept the keys in `keyring`.

        Args:
            keyring: this gateway's keys, and the public keys of the others.
            clock_us: monotonic clock, us.
            warn: logs a message for the operator: host, reason.
        """
        self._keyring = keyring
        self._clock_us = clock_us
        self._warn = warn
        self._refreshed_us = clock_us()
        self._accepted = self._rejected = 0  # numbers of connections
        self.own = key_pair_from_text(keyring.own.public, keyring.own.secret)

    def accepts_key(self, host: str, key: bytes) -> bool:
        """True if the peer at `host` may connect with this public key; an empty key is never accepted."""
        if key and self.name_of(key, reload=True):
            self._accepted += 1
            return True
        self._rejected += 1
        self._warn(host, f"a connection to the group port was rejected: {_reason(key)}")
        return False

    def name_of(self, key: bytes, *, reload: bool = False) -> str:
        """Return the name of the gateway that has this public key; empty if the key is not listed.

        With `reload`, an unknown key makes this method read a changed public file.
        """
        public = z85.encode(key)
        found = self._keyring.name_of(public)
        # A new gateway may connect before the next periodic check, so an unknown key causes an early look at the file.
        if not found and reload and self.refresh():
            found = self._keyring.name_of(public)
        return found

    def key_of(self, gateway: str) -> str:
        """Return the key that the public file lists for a gateway; empty if there is none."""
        return self._keyring.public_of(gateway)

    def client_handshake(self, link: PeerLink, identity: bytes) -> CurveClientHandshake:
        """Return a handshake that succeeds only with a peer that has the key of the link's gateway."""
        return CurveClientHandshake([z85.decode(link.key)], self.own, identity)

    @property
    def trouble(self) -> str:
        """The error of the last reload of the public file; empty if there is none."""
        return self._keyring.trouble

    def refresh(self) -> bool:
        """Read the public file again if it has changed, at most once in `KEYS_CHECK_US`. Return True if the keys changed."""
        now_us = self._clock_us()
        # Without this interval, a peer with an unknown key could cause a file access for each handshake.
        if now_us - self._refreshed_us < limits.KEYS_CHECK_US:
            return False
        self._refreshed_us = now_us
        return self._keyring.refresh()

    def facts(self) -> dict[str, int]:
        """Return the numbers of accepted and rejected connections, for the status."""
        return {"let_in": self._accepted, "turned_away": self._rejected}


def _reason(key: bytes) -> str:
    if not key:
        return "it has no key: configure keys there, too (`security.secret_key`, `security.public_keys`)"
    return (
        f"its public key, {z85.encode(key)}, is not listed: if it is a gateway of this group, write the key into the file that "
        "`security.public_keys` names, on every host"
    )
