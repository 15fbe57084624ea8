"""Where records stand that a producer sent: many at once, in one pass over the index from its end, because they come in crowds."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from tutti.log.format.index import STAGED, Rows

_NONE = -1
_POSITION = 1 << 62  # set in what is found of staged batches: positions, not offsets


class Run(NamedTuple):
    """`records` of a producer (number) behind each other, the first with this sequence. Where sequences begin anew in each epoch,
    as in a lane, `epoch` says of which; 0 where they go on.
    """

    producer: int
    first_sequence: int
    records: int
    epoch: int = 0


def offsets_of(runs: Sequence[Run], parts: Iterable[Rows], begin: int = 0) -> list[int | None]:
    """Offsets of the first records of runs; None where the log does not hold a run, or other records stand within it.

    Of a run that is a staged batch it is its position, as that has no offset.

    Args:
        runs: what is looked for.
        parts: rows of the index, the newest first. Sequences only grow, so older rows have none that fit better.
        begin: offsets below it are not told, though their files may still be there.
    """
    counts = np.array([run.records for run in runs], np.int64)
    firsts = np.array([run.first_sequence for run in runs], np.int64)
    wanted = np.concatenate([firsts, firsts + counts - 1])  # both ends: a batch may be cut otherwise than its first copy was
    found = np.full(len(wanted), _NONE, np.int64)
    places: defaultdict[tuple[int, int], list[int]] = defaultdict(list)
    for place, run in enumerate(runs):
        places[run.producer, run.epoch] += [place, place + len(runs)]
    open_ = {whose: np.array(some, np.int64) for whose, some in places.items()}
    for rows in parts:
        asked = np.array([producer for producer, _ in open_], np.uint64)
        batches = rows[((rows["count"] > 0) | (rows["flags"] == STAGED)) & np.isin(rows["producer"], asked)]
        batches = batches[np.argsort(batches["producer"], kind="stable")]
        producers = batches["producer"].astype(np.int64)
        for (producer, epoch), some in list(open_.items()):
            low, high = np.searchsorted(producers, producer, "left"), np.searchsorted(producers, producer, "right")
            mine = batches[low:high]
            left = _look(mine[mine["epoch"] == epoch] if epoch else mine, some, wanted, found)
            if len(left):
                open_[producer, epoch] = left
            else:
                del open_[producer, epoch]
        if not open_:
            break
    starts, ends = np.split(found, 2)
    good = (starts >= begin) & (ends - starts == counts - 1)
    return [int(start) & ~_POSITION if held else None for start, held in zip(starts, good, strict=True)]


def _look(
    mine: Rows, places: npt.NDArray[np.int64], wanted: npt.NDArray[np.int64], found: npt.NDArray[np.int64]
) -> npt.NDArray[np.int64]:
    """Find what one producer's rows tell of; returns the places for which older ones must be asked."""
    index = np.searchsorted(mine["first_sequence"].astype(np.int64), wanted[places], "right") - 1
    here = index >= 0
    some, rows = places[here], mine[index[here]]
    ahead = wanted[some] - rows["first_sequence"].astype(np.int64)
    found[some] = np.where(ahead < rows["count"].astype(np.int64), rows["offset"].astype(np.int64) + ahead, _NONE)
    staged = rows["flags"] == STAGED  # how many records it has is not told: asked for is what was sent, whole
    found[some[staged]] = (rows["position"][staged].astype(np.int64) + ahead[staged]) | _POSITION
    return places[~here]
