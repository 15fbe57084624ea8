"""The gateway beside this process, asked by its client port, as any tool would ask."""

from __future__ import annotations

import threading
import time
from typing import Any

from gateway.client.control import Control
from gateway.core import limits
from gateway.errors import TuttiError, Unavailable

US = 1_000_000
UNKNOWN = "unknown"


class GatewayLink:
    """Asks one gateway. Thread-safe; one question is under way at a time, and its answer serves all who ask in that moment."""

    def __init__(self, url: str, name: str) -> None:
        """Ask the gateway `name` at `url`; nothing is connected yet."""
        self._control = Control(url, timeout=limits.STATUS_WAIT_US_MAX / US)
        self._name = name
        self._asking = threading.Lock()
        self._status: dict[str, Any] | None = None
        self._asked_at = -1e9
        self.reason = "the gateway was not asked yet"

    def status(self) -> dict[str, Any] | None:
        """Its status, a quarter of a second old at most; None when it does not answer within a second (`reason` says more)."""
        with self._asking:
            if time.monotonic() - self._asked_at > limits.STATUS_FRESH_US / US:
                self._refresh()
            return self._status

    def state(self) -> str:
        """Its state as last heard, `unknown` if it does not answer. Waits only when nobody else asks, and at most once a second."""
        stale = time.monotonic() - self._asked_at > limits.STATUS_WAIT_US_MAX / US
        if stale and self._asking.acquire(blocking=False):
            try:
                self._refresh()
            finally:
                self._asking.release()
        status = self._status
        return UNKNOWN if status is None else str(status.get("state", UNKNOWN))

    def save_offset(self, reader: str, offset: int) -> None:
        """Save a named reader's offset; committed when this returns.

        Raises:
            Unavailable: the gateway does not answer.
            Refused: it would not do it.
        """
        self._control.save_offset(reader, offset)

    def close(self) -> None:
        """Say goodbye."""
        self._control.close()

    def _refresh(self) -> None:
        try:
            status = self._control.status()
            if status.get("gateway") != self._name:
                raise Unavailable(f"{self._name} does not answer; {status.get('gateway')} of the same group does")
        except TuttiError as error:
            self._status, self.reason = None, str(error)
        else:
            self._status, self.reason = status, ""
        self._asked_at = time.monotonic()
