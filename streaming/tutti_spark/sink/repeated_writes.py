"""Whether a write is in the log already: what its producer's last progress says of it.

One micro-batch of a stream is one write, so what comes again under its number is the same one, whatever the job made of it this
time. In `foreachBatch` a function may write several times: of one run of the query the second write is another one, of a later run
it is a repeat of the first, unless one of that run came before it, which has left its run in the progress.
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
_DIGITS = 16  # of a digest that only tells two writes of one name apart
_ANEW = "`tutti producers forget {name}` lets go of what is known of it, and what comes next is written, once more"


@dataclass(frozen=True)
class Write:
    """A write as its producer's progress tells it.

    Attributes:
        name: of its producer.
        batch: number of the micro-batch; -1 outside of one.
        stream: whether its micro-batch has no other.
        named: whether it has a writeId.
        run: of the query, where a micro-batch may have several writes; empty if it is not known.
        at: position of the first batch that it staged, which no other attempt at it has.
        records: how many.
        topics, counts, digest: what it has of topics, of records in each, and of bytes in each.
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
        """As messages name it."""
        whose = f"the write {self.name!r}" if self.name else "a write"
        what = whose if self.batch < 0 else f"micro-batch {self.batch} of {self.name!r}"
        return f"{what} with {self.records} records"

    def progress(self, stands: Mapping[str, Any] | None = None) -> bytes:
        """What commits with it; with `stands`, what a repeat leaves behind: the first result, and which run met it last."""
        told = ("records", "topics", "counts", "digest")
        what = {key: getattr(self, key) for key in told} if stands is None else {key: stands[key] for key in told}
        found = ({} if self.batch < 0 else {"batch": self.batch}) | ({"run": self.run} if self.run else {})
        return orjson.dumps(found | what | {"at": self.at})


def digests(records: Mapping[str, int], sizes: Mapping[str, int]) -> tuple[str, str, str]:
    """What tells one write from another, whatever order its rows come in: of topics, of records in each, and of bytes in each."""
    return (
        _digest(sorted(records)),
        _digest(dict(records)),
        _digest({topic: [count, sizes.get(topic, 0)] for topic, count in records.items()}),
    )


def _digest(what: object) -> str:
    return hashlib.sha256(orjson.dumps(what, option=orjson.OPT_SORT_KEYS)).hexdigest()[:_DIGITS]


def standing(last: bytes, wanted: Write) -> dict[str, Any] | None:
    """What is in the log of this write, as its producer's last progress says; None if it is to be written.

    Raises:
        Fenced: a later micro-batch of the query is in the log: another driver goes on with the checkpoint.
        Refused: another write is, under the same name and number.
    """
    if not last:
        return None
    try:
        done: dict[str, Any] = orjson.loads(last)
        number = int(done.get("batch", -1))
        if done["at"] == wanted.at:
            return done
        same = {what: done[what] == getattr(wanted, what) for what in ("records", "topics", "counts", "digest")}
    except (ValueError, KeyError, AttributeError, TypeError) as error:
        raise Refused(f"producer {wanted.name!r} has the progress {last!r}: it was not written by this sink", "progress") from error
    if number < wanted.batch:
        return None
    if number > wanted.batch:
        raise Fenced(
            f"micro-batch {wanted.batch} of {wanted.name!r} comes after {number}, which is in the log: another driver goes on with "
            "this checkpoint, or an older copy of it was restored. Nothing was written; stop this one, or begin a new checkpoint"
        )
    if not wanted.stream:
        _check_same(done, wanted, same)
    if not same["records"]:
        LOG.warning(
            "micro-batch %d of %s wrote %d records and comes again with %d: the first ones stand, these are not written. The "
            "job does not give the same rows again (see tutti_spark.deterministic), or an older copy of its checkpoint is used",
            wanted.batch,
            wanted.name,
            done["records"],
            wanted.records,
        )
    return done


def _check_same(done: Mapping[str, Any], wanted: Write, same: Mapping[str, bool]) -> None:
    """Raise Refused for another write under the name that one had before."""
    run = done.get("run", "")
    if wanted.run and wanted.run == run and not wanted.named:
        raise Refused(
            f"micro-batch {wanted.batch} has a second write without a writeId, and {wanted.name!r} wrote the first: after a "
            "restart nobody could tell them apart. Nothing was written. Leave the first as it is, and give each other write in "
            "the function of foreachBatch a writeId of its own",
            "progress",
        )
    kind = "digest"  # of one run, or of no run that is known
    if wanted.run and run and wanted.run != run:
        kind = "counts" if wanted.named else "topics"
    if not same[kind]:
        raise Refused(
            f"{wanted.name!r} wrote {done['records']} records and comes again with {wanted.records}, or with other topics or "
            "bytes: it is not the same write. Nothing was written; have the job give the same rows again ("
            f"tutti_spark.deterministic tells what does not); another write needs another writeId. "
            f"{_ANEW.format(name=wanted.name)}",
            "progress",
        )
