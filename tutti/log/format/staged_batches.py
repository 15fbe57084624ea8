"""Transactions in the index: a TXN has one row, for all of its records, and the batches stand where they were staged."""

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


class Part(NamedTuple):
    """Batches of a TXN, one behind the other in its order, that stand in one segment: their positions and records, and the TXN's
    row, its offset and sequence those of the first one.
    """

    positions: npt.NDArray[np.int64]
    counts: npt.NDArray[np.int64]
    row: np.void


def unfolded(frame: Frame, row: np.void, firsts: Sequence[int]) -> Iterator[tuple[int, Part]]:
    """The batches of a TXN in order, each with the segment that has it of those that begin with positions `firsts`; 0: none does.

    Raises:
        Damaged: the body is none of a TXN with so many records.
    """
    try:
        body = decode_body(TxnBody, frame.body)
    except FormatError as error:
        raise Damaged(f"position {frame.position} is no transaction: {error}", frame.position) from error
    positions, counts = np.array(body.staged, np.int64), np.array(body.counts, np.int64)
    if len(positions) != len(counts) or counts.sum() != row["count"]:
        raise Damaged(f"the transaction at position {frame.position} has {counts.sum()} records, the index says {row['count']}")
    begins = np.array([0, *firsts], np.int64)
    segments = begins[np.searchsorted(begins, positions, "right") - 1]
    cuts = np.flatnonzero(np.diff(segments)) + 1
    offset, sequence = int(row["offset"]), int(row["first_sequence"])
    for low, high in zip([0, *cuts.tolist()], [*cuts.tolist(), len(positions)], strict=True):
        own = row.copy()
        own["offset"], own["first_sequence"] = offset, sequence
        yield int(segments[low]), Part(positions[low:high], counts[low:high], own)
        records = int(counts[low:high].sum())
        offset, sequence = offset + records, sequence + records


def batches_of(found: tuple[list[Rows], Damaged | None], first: int, part: Part) -> Rows:
    """Rows of the batches as they are visible: where they stand, with the offsets, producer, sequences, view and tick of the TXN.

    Args:
        found: rows of the segment that begins with position `first`, and what is damaged behind them.
        part: the batches.

    Raises:
        Damaged: the segment does not hold them.
    """
    parts, damage = found
    at = part.positions - first
    if not len(at) or at.min() < 0 or at.max() >= sum(map(len, parts)):
        raise damage or Damaged(f"position {part.positions[0]}, which a transaction makes visible, is not in its segment")
    early = at < len(parts[0])
    batches = parts[0][np.where(early, at, 0)]  # a copy
    if not early.all():
        batches[~early] = parts[1][at[~early] - len(parts[0])]
    if (batches["kind"] != Kind.BATCH).any() or (batches["flags"] != STAGED).any():
        raise Damaged(f"position {part.positions[0]} or one behind it, which a transaction makes visible, was not staged")
    before = np.cumsum(part.counts) - part.counts
    batches["flags"] = 0
    batches["count"] = part.counts
    batches["offset"] = part.row["offset"] + before
    batches["first_sequence"] = part.row["first_sequence"].astype(np.int64) + before
    for name in _OF_TXN:
        batches[name] = part.row[name]
    return batches
