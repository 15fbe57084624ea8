"""Where the other gateways of the group serve reads, so that a range can be read from any of them, and have their admin pages.

The roster names where clients come; where a gateway has its other ports it says itself, when it is greeted. So the others are asked
by their client ports, only while somebody wants to know, and those that do not answer are left out until they do.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

from tutti.common.credentials import Credentials
from tutti.errors import TuttiError
from tutti.io.request import Talk
from tutti_gateway.core import limits

US = 1_000_000
LOG = logging.getLogger("tutti.reads")


class HasLog(Protocol):
    """What is needed of `tutti.log.read.reader.LogReader`."""

    @property
    def log(self) -> str:
        """Uuid of the log, hex."""


class KnowsGateways(Protocol):
    """What is needed of `tutti_gateway.reads.common.gateway_link.GatewayLink`."""

    def others(self) -> list[str]:
        """Urls of the other gateways that are there."""


class Found(NamedTuple):
    """What a gateway said of itself: its name, and the URIs of its reads port and of its admin pages."""

    gateway: str
    reads: str
    admin: str


class Others:
    """Knows reads and admin ports. Thread-safe.

    Attributes:
        own: this gateway's, as a URI.
    """

    def __init__(
        self, reader: HasLog, gateway: KnowsGateways, credentials: Callable[[], Credentials | None] = lambda: None
    ) -> None:
        """Ask those that `gateway` knows of, for the log of `reader`; `credentials` let this process in there."""
        self._credentials = credentials
        self._reader = reader
        self._gateway = gateway
        self.own = ""
        self._found: list[Found] = []
        self._asked_at = -1e9
        self._changed = threading.Condition()
        self._asking = False
        self._stopping = False

    def locations(self, given_up: Callable[[], bool] = bool) -> Sequence[str]:
        """URIs of the gateways that hold the log, this one first. The first question waits a moment for the others' answers."""
        return list(dict.fromkeys([self.own, *(one.reads for one in self._known(given_up))]))

    def consoles(self) -> dict[str, str]:
        """Where the others have their admin pages, by name; likewise."""
        return {one.gateway: one.admin for one in self._known()}

    def _known(self, given_up: Callable[[], bool] = bool) -> list[Found]:
        with self._changed:
            first = not self._found and self._asked_at < 0
            if time.monotonic() - self._asked_at > limits.LOCATIONS_FRESH_US / US and not self._asking and not self._stopping:
                self._asked_at = time.monotonic()
                threading.Thread(target=self._ask, name="other-gateways", daemon=True).start()
                self._asking = True  # it ends behind this lock; where no thread can be had, nobody asks
            deadline = time.monotonic() + limits.STATUS_WAIT_US_MAX / US
            while first and self._asking and not given_up() and (left := deadline - time.monotonic()) > 0:
                self._changed.wait(min(left, limits.WATCH_POLL_US / US))
            return self._found

    def stop(self) -> None:
        """Ask nobody any more."""
        self._stopping = True

    def _ask(self) -> None:
        try:
            found = []
            for url in self._gateway.others():
                one = None if self._stopping else self._told_by(url)
                if one is not None:
                    found.append(one)
            with self._changed:
                self._found = found
        except TuttiError as error:
            LOG.warning("the other gateways could not be asked", extra={"fields": {"error": str(error)}})
        finally:
            with self._changed:
                self._asking = False
                self._changed.notify_all()

    def _told_by(self, url: str) -> Found | None:
        """What the gateway at `url` says of itself; None if it does not answer, cannot be asked or has another log."""
        try:
            credentials = self._credentials()
            with Talk(url, limits.STATUS_WAIT_US_MAX / US, rounds=1, learn=False, credentials=credentials) as talk:
                welcome = talk.welcome()
        except TuttiError:
            return None
        return Found(welcome.gateway, welcome.reads, welcome.admin) if welcome.log == self._reader.log else None
