"""Chance in the core: of the run's entropy alone (`Started.entropy`), so that a recorded run replays."""

from __future__ import annotations

from random import Random

__all__ = ["Random"]
