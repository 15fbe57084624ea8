"""Succession list: gateways by age, followed by gateways whose logs lag far (Navaratnam 1987, section 3.4; membership, M11)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tutti_gateway.core import limits


def by_age(age: Sequence[int], numbers: Sequence[int]) -> list[int]:
    """Return the gateways, oldest first: members of the last decided view in their order, then other gateways by number."""
    old = [number for number in age if number in numbers]
    return [*old, *sorted(set(numbers) - set(old))]


def succession(age: Sequence[int], logs: Mapping[int, tuple[int, int]]) -> list[int]:
    """Return the order in which gateways propose a view, the first candidate first.

    A candidate whose log lags far comes after all others, because it would first have to fetch many frames.

    Args:
        age: members of the last decided view, oldest first.
        logs: (accepted view, end of the log) of each possible candidate, by number.
    """
    accepted, end = max(logs.values())
    behind = {
        number for number, log in logs.items() if log[1] < end - limits.CANDIDATE_LAG_FRAMES or (log[0] < accepted and not log[1])
    }
    order = by_age(age, list(logs))
    return [*(number for number in order if number not in behind), *(number for number in order if number in behind)]
