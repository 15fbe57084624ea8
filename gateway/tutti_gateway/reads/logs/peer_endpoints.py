"""Finds the reads ports and admin pages of the other gateways, so that a client can read a range from any of them.

The roster contains only client addresses, and a gateway reports its other ports in its welcome. Therefore this module requests the
welcome of each peer when a caller needs the endpoints. A peer that does not answer is omitted until it answers.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

from tutti.common.credentials import Credentials
from tutti.errors import TuttiError
from tutti.io.admin import RequestClient
from tutti_gateway.core import limits

US = 1_000_000
LOG = logging.getLogger("tutti.reads")


class HasLog(Protocol):
    """The part of `tutti.log.read.reader.LogReader` that this module needs."""

    @property
    def log(self) -> str:
        """Return the uuid of the log, hex."""


class KnowsGateways(Protocol):
    """The part of `tutti_gateway.reads.common.gateway_link.GatewayLink` that this module needs."""

    def peers(self) -> list[str]:
        """Return the urls of the other live gateways."""


class PeerEndpoints(NamedTuple):
    """The endpoints of a gateway: its name, the URI of its reads port, and the URI of its admin pages."""

    gateway: str
    reads: str
    admin: str


class PeerCache:
    """Caches the endpoints of the other gateways. Thread-safe.

    Attributes:
        own: URI of this gateway's reads port.
    """

    def __init__(
        self, reader: HasLog, gateway: KnowsGateways, credentials: Callable[[], Credentials | None] = lambda: None
    ) -> None:
        """Create the cache, which sends requests to peers of `gateway` with `credentials`. Peers must have the log of `reader`."""
        self._credentials = credentials
        self._reader = reader
        self._gateway = gateway
        self.own = ""
        self._found: list[PeerEndpoints] = []
        self._refreshed_at = -1e9
        self._changed = threading.Condition()
        self._refreshing = False
        self._stopping = False

    def locations(self, is_cancelled: Callable[[], bool] = bool) -> Sequence[str]:
        """Return the URIs of the gateways that hold the log, this gateway first. The first call waits briefly for the peers."""
        return list(dict.fromkeys([self.own, *(one.reads for one in self._endpoints(is_cancelled))]))

    def consoles(self) -> dict[str, str]:
        """Return the URI of each other gateway's admin pages, by name. The first call waits briefly for the peers."""
        return {one.gateway: one.admin for one in self._endpoints()}

    def _endpoints(self, is_cancelled: Callable[[], bool] = bool) -> list[PeerEndpoints]:
        with self._changed:
            first = not self._found and self._refreshed_at < 0
            if (
                time.monotonic() - self._refreshed_at > limits.LOCATIONS_FRESH_US / US
                and not self._refreshing
                and not self._stopping
            ):
                # The time of the attempt counts, so that a failed refresh is not repeated before the interval has passed.
                self._refreshed_at = time.monotonic()
                threading.Thread(target=self._refresh, name="other-gateways", daemon=True).start()
                self._refreshing = True  # set only after the thread has started, because the start may fail
            # Only the first call waits: later calls return the known endpoints while the thread refreshes them.
            deadline = time.monotonic() + limits.STATUS_WAIT_US_MAX / US
            while first and self._refreshing and not is_cancelled() and (left := deadline - time.monotonic()) > 0:
                self._changed.wait(min(left, limits.WATCH_POLL_US / US))
            return self._found

    def stop(self) -> None:
        """Send no more requests."""
        self._stopping = True

    def _refresh(self) -> None:
        try:
            found = []
            for url in self._gateway.peers():
                # A peer that does not answer costs up to a second, so a stopping process skips the remaining peers.
                one = None if self._stopping else self._endpoints_of(url)
                if one is not None:
                    found.append(one)
            with self._changed:
                self._found = found
        except TuttiError as error:
            LOG.warning("the list of the other gateways is not available", extra={"fields": {"error": str(error)}})
        finally:
            with self._changed:
                self._refreshing = False
                self._changed.notify_all()

    def _endpoints_of(self, url: str) -> PeerEndpoints | None:
        """Return the endpoints of the gateway at `url`; None if the gateway does not answer, or has another log."""
        try:
            credentials = self._credentials()
            # The url names one gateway, so the client must neither repeat the request nor use another gateway (`learn`).
            with RequestClient(url, limits.STATUS_WAIT_US_MAX / US, rounds=1, learn=False, credentials=credentials) as client:
                welcome = client.welcome()
        except TuttiError:
            return None
        # A url may lead to a gateway with another log, in which the offsets of this log mean nothing.
        return PeerEndpoints(welcome.gateway, welcome.reads, welcome.admin) if welcome.log == self._reader.log else None
