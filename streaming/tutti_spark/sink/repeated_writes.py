"""Recognises a repeated write by the last progress of its producer.

A micro-batch of a stream is one write, so a second write with the same batch number is a repeat, even if its rows differ. In
`foreachBatch`, the function may write several times for one micro-batch. Two writes in the same run of the query are different
writes. The first write in a later run repeats the write of the earlier run. When a run repeats a write, the progress gets the id of
this run, so that the next write in the same run counts as a different write.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import orjson

from tutti.errors import Fenced, Refused

LOG = logging.getLogger("tutti.spark")
_DIGITS = 16  # hex digits of a digest; few are enough, because digests distinguish only writes with the same name
_FORGET_ADVICE = "`tutti producers forget {name}` deletes the record of the earlier write, and the next write is then written again"


@dataclass(frozen=True)
class Write:
    """A write, as its producer's progress describes it.

    Attributes:
        name: name of the producer.
        batch: number of the micro-batch; -1 outside of a micro-batch.
        stream: True for a streaming sink, which writes each micro-batch once.
        named: True if the write has a writeId.
        run: id of the query's run, needed only in `foreachBatch`; empty if unknown.
        at: position of the write's first staged batch in the log, different for each attempt.
        records: number of records.
        topics: digest of the topics.
        counts: digest of the number of records per topic.
        digest: digest of the number of records and bytes per topic.
    """

    name: str
    batch: int
    stream: bool
    named: bool
    run: str
    at: int
    records: int
    topics: str
    counts: str
    digest: str

    def __str__(self) -> str:
        """Return the text for messages."""
        label = f"the write {self.name!r}" if self.name else "a write"
        what = label if self.batch < 0 else f"micro-batch {self.batch} of {self.name!r}"
        return f"{what} with {self.records} records"

    def progress(self, first_result: Mapping[str, Any] | None = None) -> bytes:
        """Return the progress to commit: for a repeat, that of the first write (`first_result`) with the id of this run."""
        keys = ("records", "topics", "counts", "digest")
        what = {key: getattr(self, key) for key in keys} if first_result is None else {key: first_result[key] for key in keys}
        found = ({} if self.batch < 0 else {"batch": self.batch}) | ({"run": self.run} if self.run else {})
        return orjson.dumps(found | what | {"at": self.at})


def digests(records: Mapping[str, int], sizes: Mapping[str, int]) -> tuple[str, str, str]:
    """Return digests of the topics, of the records per topic, and of records and bytes per topic, independent of the row order."""
    return (
        _digest(sorted(records)),
        _digest(dict(records)),
        _digest({topic: [count, sizes.get(topic, 0)] for topic, count in records.items()}),
    )


def _digest(what: object) -> str:
    return hashlib.sha256(orjson.dumps(what, option=orjson.OPT_SORT_KEYS)).hexdigest()[:_DIGITS]


def find_committed(last: bytes, wanted: Write) -> dict[str, Any] | None:
    """Return the committed progress if the log already contains this write. Return None if the sink must write it.

    Args:
        last: last committed progress of the producer.
        wanted: the write to look for.

    Raises:
        Fenced: the log has a later micro-batch of the query, so another driver uses the checkpoint.
        Refused: the log has a different write with the same name and number.
    """
    if not last:
        return None
    try:
        committed: dict[str, Any] = orjson.loads(last)
        number = int(committed.get("batch", -1))
        if committed["at"] == wanted.at:
            return committed
        same = {what: committed[what] == getattr(wanted, what) for what in ("records", "topics", "counts", "digest")}
    except (ValueError, KeyError, AttributeError, TypeError) as error:
        raise Refused(f"producer {wanted.name!r} has the progress {last!r}, which this sink did not write", "progress") from error
    if number < wanted.batch:
        return None
    if number > wanted.batch:
        raise Fenced(
            f"micro-batch {wanted.batch} of {wanted.name!r} cannot follow {number}, which is already in the log: another driver "
            "uses this checkpoint, or an older copy of it was restored. Nothing was written. Stop this query, or use a new "
            "checkpoint"
        )
    if not wanted.stream:
        _check_same(committed, wanted, same)
    if not same["records"]:
        LOG.warning(
            "micro-batch %d of %s wrote %d records, and its repeat has %d: the first records stay, the repeat is not written. The "
            "job is not deterministic (see tutti_spark.deterministic), or it uses an older copy of its checkpoint",
            wanted.batch,
            wanted.name,
            committed["records"],
            wanted.records,
        )
    return committed


def _check_same(committed: Mapping[str, Any], wanted: Write, same: Mapping[str, bool]) -> None:
    """Raise Refused if the committed write is a different write with the same name."""
    run = committed.get("run", "")
    if wanted.run and wanted.run == run and not wanted.named:
        raise Refused(
            f"micro-batch {wanted.batch} has a second write without a writeId, and {wanted.name!r} wrote the first: after a "
            "restart the two cannot be distinguished. Nothing was written. Keep the first as it is, and give each other write in "
            "the function of foreachBatch its own writeId",
            "progress",
        )
    kind = "digest"  # in the same or an unknown run, also compare the numbers of bytes
    if wanted.run and run and wanted.run != run:
        kind = "counts" if wanted.named else "topics"
    if not same[kind]:
        raise Refused(
            f"{wanted.name!r} wrote {committed['records']} records, and its repeat has {wanted.records}, or other topics or bytes: "
            "it is not the same write. Nothing was written; make the job deterministic (tutti_spark.deterministic finds the parts "
            f"that are not); a different write needs a different writeId. {_FORGET_ADVICE.format(name=wanted.name)}",
            "progress",
        )
