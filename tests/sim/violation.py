"""What ends a run of the simulator."""

from __future__ import annotations


class Violation(Exception):
    """Something that may never happen did; the text says what, with the values."""
