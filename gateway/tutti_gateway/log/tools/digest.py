"""The digest of a range of a directory; what is digested, and how, stands in `tutti/data/frames/digest.py`."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import closing
from typing import NamedTuple

from tutti.data.frames.digest import DIGESTED, Digester
from tutti.log.read.lane_reader import LaneReader, reader_of
from tutti.log.read.scan import scan


class Digest(NamedTuple):
    """A digest (hex) of the records [start, end) of a log (uuid as hex), or of a lane beside it (NUMBER-INCARNATIONHEX)."""

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
    """The digest of the committed records [start, end) of a directory, from its first one to its frontier unless said otherwise.

    Args:
        progress: called after each batch with records done and records in all.

    Raises:
        DirectoryRefused, OffsetOutOfRange, UsageError: there is no such range.
        Damaged: a frame in it is.
    """
    with closing(reader_of(path)) as reader:
        low = reader.start if start is None else start
        high = reader.frontier().offset if end is None else end
        reader.check_range(low, high)
        digester = Digester()
        for batch in scan(reader, low, high, columns=DIGESTED):
            digester.take(batch)
            if progress is not None:
                progress(digester.records, high - low)
        return Digest(reader.log, low, high, digester.hexdigest(low), reader.lane.text if isinstance(reader, LaneReader) else "")
