"""Cutting a range into parts of about the same size, at the borders of batches."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from gateway.log.index import Rows


class Range(NamedTuple):
    """Offsets [start, end), the records in it and their bytes on disk (of the topics asked for)."""

    start: int
    end: int
    rows: int
    bytes: int


def cut(start: int, end: int, parts: Sequence[Rows], split_bytes: int | None, splits: int | None) -> list[Range]:
    """Cut [start, end), where the batches of `parts` (index rows, in order) have records; borders are starts of batches.

    Every offset is in one range, those without records to be read too. An empty range has no parts.
    """
    if end <= start:
        return []
    offsets = _column(parts, "offset")
    ends = np.minimum(offsets + _column(parts, "count"), end)
    rows = ends - np.maximum(offsets, start)
    counts = np.maximum(_column(parts, "count"), 1)
    sizes = _column(parts, "size") * rows // counts  # of a batch that is cut, its share
    total = int(sizes.sum())
    goal = max(-(-total // splits), 1) if splits is not None else split_bytes or max(total, 1)
    before = np.cumsum(sizes) - sizes
    # A batch belongs to the part in which it begins; each part that has one begins with its first.
    numbers = before // goal
    firsts = np.flatnonzero(np.diff(numbers, prepend=-1)) if len(numbers) else np.zeros(1, np.int64)
    found = []
    for index, first in enumerate(firsts):
        last = int(firsts[index + 1]) if index + 1 < len(firsts) else len(offsets)
        low = start if index == 0 else int(offsets[first])
        high = int(offsets[last]) if last < len(offsets) else end
        found.append(Range(low, high, int(rows[first:last].sum()), int(sizes[first:last].sum())))
    return found


def _column(parts: Sequence[Rows], name: str) -> npt.NDArray[np.int64]:
    return np.concatenate([part[name].astype(np.int64) for part in parts]) if parts else np.empty(0, np.int64)
