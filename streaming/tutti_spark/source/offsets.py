"""Offsets of a stream as Spark keeps them in its checkpoint: `{"log": uuid, "offset": n, "from": m}`.

Spark asks for the initial offset again after a crash in batch 0, though that batch's end may be in its offset log already, and a
start of "latest" is then another one. So every end carries the start of its own batch, and a batch is planned from its end alone:
[from, offset). Only where Spark kept no end of the batches before it does a batch begin earlier (`batch_range`). A log is named by
its uuid: offsets of one mean nothing in another.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from tutti.errors import UsageError


@dataclass(frozen=True, slots=True)
class StreamOffset:
    """Where a micro-batch ends, and where it began; equal both for the start of a query that has read nothing."""

    log: str
    offset: int
    begin: int

    @classmethod
    def initial(cls, log: str, offset: int) -> StreamOffset:
        """Before the first batch of a new query."""
        return cls(log, offset, offset)

    @classmethod
    def parse(cls, data: object) -> StreamOffset:
        """What Spark hands back.

        Raises:
            UsageError: it is not of this form, as in a checkpoint of another source or of a newer version.
        """
        if isinstance(data, dict) and set(data) == {"log", "offset", "from"}:
            log, offset, begin = data["log"], data["offset"], data["from"]
            if isinstance(log, str) and type(offset) is int and type(begin) is int and begin >= 0:
                return cls(log, offset, begin)
        raise UsageError(
            f"the checkpoint holds {json.dumps(data)}, which is no offset of the source tutti "
            '({"log", "offset", "from"}): use the checkpointLocation of this query, or a new one'
        )

    def data(self) -> dict[str, Any]:
        """The form that Spark keeps; always the same text for the same offset, as Spark compares texts."""
        return {"log": self.log, "offset": self.offset, "from": self.begin}


def check_log(offset: StreamOffset, log: str, origin: str) -> None:
    """Raise UsageError unless `offset` is one of `log`, which is read from `origin`."""
    if offset.log != log:
        raise UsageError(
            f"the checkpoint is of log {offset.log} and {origin} has log {log}: offsets of one mean nothing in the other. "
            "Read from a gateway of the first, or start anew with a new checkpointLocation"
        )


def batch_range(start: StreamOffset, end: StreamOffset) -> tuple[int, int]:
    """The records [a, b) of the batch that ends at `end`, whatever Spark takes for its start.

    With `asyncProgressTrackingEnabled` Spark keeps the ends of some batches only. After a failure `start` is the last end that it
    kept, and the batches between `start` and `end` are part of this one: they are read again, so that none is lost.

    Raises:
        UsageError: the two cannot belong together.
    """
    check_log(start, end.log, "the planned batch")
    if end.begin > end.offset:
        raise UsageError(f"the batch would begin at {end.begin}, behind its end {end.offset}: the checkpoint is damaged")
    if start.offset == start.begin:  # no batch has moved it: it may be the answer to a second question for the initial offset
        return end.begin, end.offset
    if start.offset > end.begin:
        raise UsageError(
            f"the batch that ends at {end.offset} began at {end.begin}, but the one before it ended at {start.offset}: "
            "the checkpoint is damaged"
        )
    return start.offset, end.offset


def next_end(start: int, available: int, records_max: int | None) -> int:
    """Where the batch that begins at `start` ends; `start` itself when there is nothing to read yet.

    Args:
        start: first offset of the batch.
        available: first offset that may not be read.
        records_max: limit of a batch, in offsets of the log.
    """
    return max(start, available if records_max is None else min(available, start + records_max))
