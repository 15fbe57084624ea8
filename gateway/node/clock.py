"""The clock that the driver hands to the stack."""

from __future__ import annotations

import time

from gateway.core.events import Now

NS_PER_US = 1000


class Clock:
    """Reads monotonic and wall time, in microseconds.

    Timers use the monotonic part. The wall part only goes forward: when the machine's clock is set back it stands still until the
    real time has caught up, so that ticks and default timestamps never go back.
    """

    def __init__(self) -> None:
        self._wall_us = 0

    def mono_us(self) -> int:
        """The monotonic part alone."""
        return time.monotonic_ns() // NS_PER_US

    def now(self) -> Now:
        """The time of this moment."""
        wall_us = time.time_ns() // NS_PER_US
        if wall_us > self._wall_us:
            self._wall_us = wall_us
        return Now(time.monotonic_ns() // NS_PER_US, self._wall_us)
