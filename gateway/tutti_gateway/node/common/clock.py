"""The clock that the driver hands to the stack."""

from __future__ import annotations

import time

from tutti_gateway.core import limits
from tutti_gateway.core.protocol.events import Now

NS_PER_US = 1000


class Clock:
    """Reads monotonic and wall time, in microseconds.

    Timers use the monotonic part. When the machine's clock is set back a little, the wall part stands still until the real time has
    caught up, so that default timestamps do not go back. A clock that is set back further was wrong before, and is followed.
    """

    def __init__(self) -> None:
        self._wall_us = 0

    def mono_us(self) -> int:
        """The monotonic part alone."""
        return time.monotonic_ns() // NS_PER_US

    def now(self) -> Now:
        """The time of this moment."""
        wall_us = time.time_ns() // NS_PER_US
        if wall_us > self._wall_us or self._wall_us - wall_us > limits.CLOCK_BACK_US_MAX:
            self._wall_us = wall_us
        return Now(time.monotonic_ns() // NS_PER_US, self._wall_us)
