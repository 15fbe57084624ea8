"""Finds records by producer and sequence: many records at a time, in one backward pass over the index."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from tutti.log.format.index import STAGED, Rows

_NONE = -1
_POSITION = 1 << 62  # bit that marks a result that is a position and not an offset, for a run in a staged batch


class SequenceRun(NamedTuple):
    """Consecutive records of one producer.

    Attributes:
        producer: number of the producer.
        first_sequence: sequence of the run's first record.
        records: number of records in the run.
        epoch: epoch of the records in a lane, where sequences restart with each epoch; 0 for the ordered log.
    """

    producer: int
    first_sequence: int
    records: int
    epoch: int = 0


def offsets_of(runs: Sequence[SequenceRun], parts: Iterable[Rows], begin: int = 0) -> list[int | None]:
    """Return the offset of each run's first record.

    The result for a run is None if the log does not have all its records at consecutive offsets. For a run in a staged batch, which
    has no offsets, the result is the position of the batch.

    Args:
        runs: runs to find.
        parts: arrays of index rows, the newest first. The first match is the right one, because a producer's sequences only grow.
        begin: start offset of the log. Lower offsets are ignored, even if the files with these records still exist.
    """
    counts = np.array([run.records for run in runs], np.int64)
    firsts = np.array([run.first_sequence for run in runs], np.int64)
    # The first and the last record are searched separately, because a resent batch can have other boundaries than its first copy.
    wanted = np.concatenate([firsts, firsts + counts - 1])
    found = np.full(len(wanted), _NONE, np.int64)
    indexes: defaultdict[tuple[int, int], list[int]] = defaultdict(list)
    for index, run in enumerate(runs):
        indexes[run.producer, run.epoch] += [index, index + len(runs)]
    open_ = {key: np.array(some, np.int64) for key, some in indexes.items()}
    for rows in parts:
        wanted_producers = np.array([producer for producer, _ in open_], np.uint64)
        batches = rows[((rows["count"] > 0) | (rows["flags"] == STAGED)) & np.isin(rows["producer"], wanted_producers)]
        # The sort is stable, because the binary search in `_resolve` needs the rows of each producer in log order.
        batches = batches[np.argsort(batches["producer"], kind="stable")]
        producers = batches["producer"].astype(np.int64)
        for (producer, epoch), some in list(open_.items()):
            low, high = np.searchsorted(producers, producer, "left"), np.searchsorted(producers, producer, "right")
            mine = batches[low:high]
            # In a lane, sequences begin with 1 in each epoch (lanes, U22), so rows of other epochs would match wrongly.
            left = _resolve(mine[mine["epoch"] == epoch] if epoch else mine, some, wanted, found)
            if len(left):
                open_[producer, epoch] = left
            else:
                del open_[producer, epoch]
        if not open_:
            break
    starts, ends = np.split(found, 2)
    good = (starts >= begin) & (ends - starts == counts - 1)
    return [int(start) & ~_POSITION if complete else None for start, complete in zip(starts, good, strict=True)]


def _resolve(
    mine: Rows, indexes: npt.NDArray[np.int64], wanted: npt.NDArray[np.int64], found: npt.NDArray[np.int64]
) -> npt.NDArray[np.int64]:
    """Search one producer's rows for the wanted sequences. Return the indexes of the sequences that can only be in older rows."""
    index = np.searchsorted(mine["first_sequence"].astype(np.int64), wanted[indexes], "right") - 1
    here = index >= 0
    some, rows = indexes[here], mine[index[here]]
    ahead = wanted[some] - rows["first_sequence"].astype(np.int64)
    found[some] = np.where(ahead < rows["count"].astype(np.int64), rows["offset"].astype(np.int64) + ahead, _NONE)
    # The row of a staged batch has no record count, so each sequence from its first one on counts as found.
    staged = rows["flags"] == STAGED
    found[some[staged]] = (rows["position"][staged].astype(np.int64) + ahead[staged]) | _POSITION
    return indexes[~here]
