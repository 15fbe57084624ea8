"""The clock that the driver passes to the stack."""

from __future__ import annotations

import time

from tutti_gateway.core import limits
from tutti_gateway.core.protocol.events import Now

NS_PER_US = 1000


class Clock:
    """Reads monotonic and wall time, in microseconds.

    Timers use monotonic time. After a small step back of the machine's clock, the wall time stays constant until the clock has
    caught up, so that default timestamps do not decrease. A larger step back counts as the correction of a wrong clock, and the
    wall time follows it.
    """

    def __init__(self) -> None:
        self._wall_us = 0

    def mono_us(self) -> int:
        """Return the monotonic time, us."""
        return time.monotonic_ns() // NS_PER_US

    def now(self) -> Now:
        """Return the current monotonic and wall time."""
        wall_us = time.time_ns() // NS_PER_US
        if wall_us > self._wall_us or self._wall_us - wall_us > limits.CLOCK_BACK_US_MAX:
            self._wall_us = wall_us
        # Timers never use the wall time, because NTP or an operator may move the wall clock at any moment.
        return Now(time.monotonic_ns() // NS_PER_US, self._wall_us)
