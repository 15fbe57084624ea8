"""Computes the digest of a range of records in a data directory, as `tutti/data/frames/digest.py` defines it."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import closing
from typing import NamedTuple

from tutti.data.frames.digest import DIGESTED, Digester
from tutti.log.read.lane_reader import LaneReader, open_reader
from tutti.log.read.scan import scan


class Digest(NamedTuple):
    """A SHA-256 digest of the committed records at offsets [start, end).

    Attributes:
        log: uuid of the log, hex.
        start, end: first offset of the range, and offset after its last record.
        sha256: digest of the records, hex.
        lane: name of the lane (NUMBER-INCARNATIONHEX); empty for the ordered log.
    """

    log: str
    start: int
    end: int
    sha256: str
    lane: str = ""


def digest(
    path: str | os.PathLike[str],
    start: int | None = None,
    end: int | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Digest:
    """Return the digest of the committed records at offsets [start, end) of a directory.

    Args:
        path: data directory, or directory of a lane.
        start: first offset, or None for the first record of the log.
        end: offset after the last record, or None for the frontier.
        progress: called after each batch, with the number of digested records and the total number.

    Raises:
        DirectoryRefused, OffsetOutOfRange, UsageError: the directory cannot be read, or lacks the range.
        Damaged: a frame in the range is corrupt.
    """
    with closing(open_reader(path)) as reader:
        low = reader.start if start is None else start
        high = reader.frontier().offset if end is None else end
        reader.check_range(low, high)
        digester = Digester()
        for batch in scan(reader, low, high, columns=DIGESTED):
            digester.update(batch)
            if progress is not None:
                progress(digester.records, high - low)
        return Digest(reader.log, low, high, digester.hexdigest(low), reader.lane.text if isinstance(reader, LaneReader) else "")
