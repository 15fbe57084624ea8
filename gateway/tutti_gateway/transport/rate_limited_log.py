"""Rate limit for logged problems: often enough for an operator to see them, but too rarely to fill the log."""

from __future__ import annotations

from tutti import limits as common_limits
from tutti_gateway.core import limits
from tutti_gateway.transport.interface import Trouble


class TroubleLog:
    """Collects problems for the log: each problem once in `WARNING_REPEAT_US`, and at most `CONNECTION_PROBLEMS_MAX` in that time.

    Attributes:
        suppressed: number of reports that did not reach the log.
    """

    def __init__(self) -> None:
        self._reported_us: dict[Trouble, int] = {}
        self._pending: list[Trouble] = []
        self.suppressed = 0

    def report(self, peer: str, reason: str, now_us: int) -> None:
        """Add a problem; a problem that was reported recently only counts as suppressed. `now_us` is monotonic time."""
        trouble = Trouble(peer, reason)
        reported_us = self._reported_us.get(trouble)
        if reported_us is not None and now_us - reported_us < common_limits.WARNING_REPEAT_US:
            self.suppressed += 1
            return
        # Unknown peers can cause any number of different texts, so the number of remembered problems has a limit.
        if reported_us is None and len(self._reported_us) >= limits.CONNECTION_PROBLEMS_MAX and not self._forget_old(now_us):
            self.suppressed += 1
            return
        self._reported_us[trouble] = now_us
        self._pending.append(trouble)

    def _forget_old(self, now_us: int) -> bool:
        """Drop old entries. Return False if none was old."""
        self._reported_us = {
            trouble: us for trouble, us in self._reported_us.items() if now_us - us < common_limits.WARNING_REPEAT_US
        }
        return len(self._reported_us) < limits.CONNECTION_PROBLEMS_MAX

    def drain(self) -> list[Trouble]:
        """Return the new problems."""
        pending, self._pending = self._pending, []
        return pending
