"""What an operator must know, told often enough to be seen and never so often that it fills a log."""

from __future__ import annotations

from tutti import limits as common_limits
from tutti_gateway.core import limits
from tutti_gateway.transport.interface import Trouble


class Troubles:
    """Collects troubles: the same is told once in `TROUBLE_TELL_US`, and no more than `TROUBLES_MAX` different ones meanwhile."""

    def __init__(self) -> None:
        self._told_us: dict[Trouble, int] = {}
        self._waiting: list[Trouble] = []
        self.untold = 0  # how often something was not told, for the status

    def tell(self, peer: str, reason: str, now_us: int) -> None:
        """Something is wrong; `now_us` is a monotonic clock. What was told lately is only counted (`untold`)."""
        trouble = Trouble(peer, reason)
        told_us = self._told_us.get(trouble)
        if told_us is not None and now_us - told_us < common_limits.WARNING_REPEAT_US:
            self.untold += 1
            return
        if told_us is None and len(self._told_us) >= limits.CONNECTION_PROBLEMS_MAX and not self._forget(now_us):
            self.untold += 1
            return
        self._told_us[trouble] = now_us
        self._waiting.append(trouble)

    def _forget(self, now_us: int) -> bool:
        """Make room of what was told long ago; whether there is any."""
        self._told_us = {trouble: us for trouble, us in self._told_us.items() if now_us - us < common_limits.WARNING_REPEAT_US}
        return len(self._told_us) < limits.CONNECTION_PROBLEMS_MAX

    def take(self) -> list[Trouble]:
        """Those that were not taken yet."""
        waiting, self._waiting = self._waiting, []
        return waiting
