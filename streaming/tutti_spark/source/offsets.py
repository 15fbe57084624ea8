"""Offsets of a stream as Spark stores them in its checkpoint: `{"log": uuid, "offset": n, "from": m}`.

Each end contains the start of its batch (`from`), so that the source can plan the batch [from, offset) from its end alone. The
reason is a crash in batch 0: Spark requests the initial offset again, although its offset log may already contain the end of batch
0. With `latest`, the second initial offset differs from the first. A batch begins before `from` only if Spark did not store the
ends of earlier batches (`batch_range`). The UUID identifies the log, because offsets of one log have no meaning in a different log.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from tutti.errors import UsageError


@dataclass(frozen=True, slots=True)
class StreamOffset:
    """The log, end (`offset`) and start (`begin`) of a micro-batch. Start and end are equal in the initial offset of a query."""

    log: str
    offset: int
    begin: int

    @classmethod
    def initial(cls, log: str, offset: int) -> StreamOffset:
        """Return the start of a new query."""
        return cls(log, offset, offset)

    @classmethod
    def parse(cls, data: object) -> StreamOffset:
        """Parse an offset from Spark's checkpoint.

        Raises:
            UsageError: the data has a different form; another source or a newer release may have written the checkpoint.
        """
        if isinstance(data, dict) and set(data) == {"log", "offset", "from"}:
            log, offset, begin = data["log"], data["offset"], data["from"]
            if isinstance(log, str) and type(offset) is int and type(begin) is int and begin >= 0:
                return cls(log, offset, begin)
        raise UsageError(
            f"the checkpoint contains {json.dumps(data)}, which is not an offset of the source tutti "
            '({"log", "offset", "from"}): use the checkpointLocation of this query, or a new one'
        )

    def data(self) -> dict[str, Any]:
        """Return the form for the checkpoint. Equal offsets must give equal JSON text, because Spark compares the text."""
        return {"log": self.log, "offset": self.offset, "from": self.begin}


def check_log(offset: StreamOffset, log: str, origin: str) -> None:
    """Raise UsageError unless `offset` belongs to `log`, which is read from `origin`."""
    if offset.log != log:
        raise UsageError(
            f"the checkpoint is of log {offset.log} and {origin} has log {log}: offsets of one log mean nothing in the other. "
            "Read from a gateway of the first log, or start with a new checkpointLocation"
        )


def batch_range(start: StreamOffset, end: StreamOffset) -> tuple[int, int]:
    """Return the range [a, b) of the batch that ends at `end`. `start` is the start that Spark passes.

    With `asyncProgressTrackingEnabled`, Spark stores the ends of only some batches. After a failure, `start` is the last stored
    end. The batches between `start` and `end` become part of this batch and are read again, so that no record is lost.

    Raises:
        UsageError: the two offsets cannot come from one query.
    """
    check_log(start, end.log, "the planned batch")
    if end.begin > end.offset:
        raise UsageError(f"the batch would begin at {end.begin}, above its end {end.offset}: the checkpoint is corrupt")
    if start.offset == start.begin:  # use only `end`, because with `latest`, two calls return different initial offsets
        return end.begin, end.offset
    if start.offset > end.begin:
        raise UsageError(
            f"the batch that ends at {end.offset} began at {end.begin}, but the one before it ended at {start.offset}: "
            "the checkpoint is corrupt"
        )
    return start.offset, end.offset


def next_end(start: int, available: int, records_max: int | None) -> int:
    """Return the end of the batch that begins at `start`. Return `start` itself if no record is available.

    Args:
        start: first offset of the batch.
        available: end of the available records.
        records_max: limit of a batch, in offsets of the log (None: no limit).
    """
    return max(start, available if records_max is None else min(available, start + records_max))
