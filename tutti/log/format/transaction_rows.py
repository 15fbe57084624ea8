"""Transactions in the index: finds the index rows of the batches that a TXN makes visible.

The index row of a TXN has the number of all its records, but the batches stay at the positions where they were staged. Therefore
readers replace the row of a TXN by rows of its batches.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from tutti.data.frames.bodies import TxnBody, decode_body
from tutti.data.frames.frame import Frame, Kind
from tutti.errors import Damaged, FormatError
from tutti.log.format.index import STAGED, Rows

_OF_TXN = ("producer", "epoch", "view", "tick", "origin")


class StagedPart(NamedTuple):
    """Batches that are consecutive in the order of a TXN and lie in the same segment.

    Attributes:
        positions, counts: position and record count of each batch.
        row: copy of the TXN's index row, with the offset and the sequence of the first record in these batches.
    """

    positions: npt.NDArray[np.int64]
    counts: npt.NDArray[np.int64]
    row: np.void


def txn_parts(frame: Frame, row: np.void, firsts: Sequence[int]) -> Iterator[tuple[int, StagedPart]]:
    """Yield the batches of a TXN in order, grouped by segment, as (first position of the segment, batches).

    The first position is one of `firsts`, or 0 if the batches lie before the first existing segment.

    Raises:
        Damaged: the body is not a valid TXN, or its record count differs from the index row.
    """
    try:
        body = decode_body(TxnBody, frame.body)
    except FormatError as error:
        raise Damaged(f"position {frame.position} is not a valid transaction: {error}", frame.position) from error
    positions, counts = np.array(body.staged, np.int64), np.array(body.counts, np.int64)
    if len(positions) != len(counts) or counts.sum() != row["count"]:
        raise Damaged(f"the transaction at position {frame.position} has {counts.sum()} records, but the index has {row['count']}")
    begins = np.array([0, *firsts], np.int64)
    segments = begins[np.searchsorted(begins, positions, "right") - 1]
    cuts = np.flatnonzero(np.diff(segments)) + 1
    offset, sequence = int(row["offset"]), int(row["first_sequence"])
    for low, high in zip([0, *cuts.tolist()], [*cuts.tolist(), len(positions)], strict=True):
        own = row.copy()
        own["offset"], own["first_sequence"] = offset, sequence
        yield int(segments[low]), StagedPart(positions[low:high], counts[low:high], own)
        records = int(counts[low:high].sum())
        offset, sequence = offset + records, sequence + records


def visible_rows(found: tuple[list[Rows], Damaged | None], first: int, part: StagedPart) -> Rows:
    """Return the rows of staged batches as readers see them: visible, with offsets, producer, sequences, view and tick of the TXN.

    Args:
        found: index rows of the segment, and the corruption after these rows (None: no corruption).
        first: first position of the segment.
        part: the batches, which must lie in this segment.

    Raises:
        Damaged: the segment does not hold the batches.
    """
    parts, damage = found
    at = part.positions - first
    if not len(at) or at.min() < 0 or at.max() >= sum(map(len, parts)):
        raise damage or Damaged(f"position {part.positions[0]} belongs to a transaction but is missing in its segment")
    # The rows of a segment can be in two arrays: rows from the index, and then rows that were rebuilt from frames.
    early = at < len(parts[0])
    batches = parts[0][np.where(early, at, 0)]  # a copy
    if not early.all():
        batches[~early] = parts[1][at[~early] - len(parts[0])]
    # A staged batch with the flag ABORTED is an error, because a TXN must not make a void batch visible.
    if (batches["kind"] != Kind.BATCH).any() or (batches["flags"] != STAGED).any():
        raise Damaged(f"position {part.positions[0]} or a later one belongs to a transaction but is not a staged batch")
    before = np.cumsum(part.counts) - part.counts
    # Each task of a writer stages batches under its own producer, but readers see all records under the producer of the TXN.
    batches["flags"] = 0
    batches["count"] = part.counts
    batches["offset"] = part.row["offset"] + before
    batches["first_sequence"] = part.row["first_sequence"].astype(np.int64) + before
    for name in _OF_TXN:
        batches[name] = part.row[name]
    return batches
