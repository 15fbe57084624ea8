"""Succession list: the order in which gateways propose a view (Navaratnam 1987, section 3.4; membership, M11)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tutti_gateway.core import limits


def by_age(age: Sequence[int], numbers: Sequence[int]) -> list[int]:
    """Return the gateways in order of age: first members of the last decided view, oldest first, then others by number."""
    old = [number for number in age if number in numbers]
    return [*old, *sorted(set(numbers) - set(old))]


def succession(age: Sequence[int], logs: Mapping[int, tuple[int, int]]) -> list[int]:
    """Return the gateways in the order in which they may propose a view.

    The order is that of age, except that gateways whose logs lag far come last, because they would first have to fetch many frames.

    Args:
        age: members of the last decided view, oldest first.
        logs: (accepted view, end of the log) of each possible candidate, by gateway number.
    """
    accepted, end = max(logs.values())
    behind = {
        number for number, log in logs.items() if log[1] < end - limits.CANDIDATE_LAG_FRAMES or (log[0] < accepted and not log[1])
    }
    order = by_age(age, list(logs))
    return [*(number for number in order if number not in behind), *(number for number in order if number in behind)]
