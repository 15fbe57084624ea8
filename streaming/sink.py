"""The sink: each task stages its records, and the driver makes those of a whole batch visible at once, by one transaction.

A batch is known by its query (its checkpoint's id) and its number, which is the progress of the query's producer in the log: what
was committed is not committed again, by this driver or another one.
"""

from __future__ import annotations

import contextlib
import hashlib
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import orjson
import pyarrow as pa
import pyarrow.compute as pc
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage

from gateway.client.control import Control
from gateway.client.receipt import Receipt
from gateway.client.transactions import Part, Staging, Transactor
from gateway.core import limits
from gateway.errors import Fenced, Refused, TuttiError, Unknown, UsageError
from streaming.sink_options import SinkOptions

_BINARY = pa.binary()
_FORGET_S = 5.0  # for what only tidies up


@dataclass(frozen=True)
class Staged(WriterCommitMessage):
    """What a task staged: its producer (empty: nothing was), the batches, the bytes of keys and values that each topic got, and of
    which micro-batch of which query it is (-1 and empty outside of one).
    """

    producer: str
    parts: tuple[Part, ...]
    payload: dict[str, int]
    query: str = ""
    batch: int = -1


class _Sink:
    """What writers of batches and of streams have in common."""

    def __init__(self, options: SinkOptions) -> None:
        """Prepare; nothing is connected."""
        self._options = options

    def stage(self, iterator: Iterator[pa.RecordBatch]) -> Staged:
        """Stage the records of a partition, in their order (those of each topic, where a column names it)."""
        query, micro_batch = _property("sql.streaming.queryId"), _property("streaming.sql.batchId")
        staging: Staging | None = None
        receipts: list[Receipt] = []
        payload: dict[str, int] = {}
        try:
            for batch in iterator:
                for topic, records in by_topic(batch, self._options.topic):
                    if staging is None:
                        staging = Staging(self._options.gateways, connect_timeout=limits.READ_RETRY_US / 1e6)
                    receipts += staging.stage(topic, records)
                    payload[topic] = payload.get(topic, 0) + _payload(records)
            parts = tuple(Staging.parts(receipts))
        except BaseException:
            if staging is not None:
                self._let_go([staging.name])
            raise
        finally:
            if staging is not None:
                staging.close()
        return Staged(staging.name if staging is not None else "", parts, payload, query, int(micro_batch or -1))

    def _commit(self, name: str | None, number: dict[str, Any], messages: Sequence[WriterCommitMessage | None]) -> None:
        staged = [message for message in messages if isinstance(message, Staged)]
        parts = [part for message in staged for part in message.parts]
        if parts:
            self._make_visible(name, {**number, "records": sum(part.records for part in parts), "digest": digest(staged)}, parts)
            self._let_go([message.producer for message in staged if message.producer])

    def _make_visible(self, name: str | None, progress: dict[str, Any], parts: Sequence[Part]) -> None:
        """Commit, once: an outcome that is not known is asked of the log, under the next epoch."""
        deadline = time.monotonic() + limits.READ_RETRY_US / 1e6
        while True:
            with contextlib.suppress(Unknown), self._transactor(name) as transactor:
                if not already(transactor.name, transactor.resume().progress, progress):
                    transactor.commit(parts, orjson.dumps(progress)).result()
                return
            if name is None or time.monotonic() > deadline:
                raise Unknown(
                    f"whether the transaction {progress} is in the log is not known after {limits.READ_RETRY_US / 1e6:g} s: the "
                    "same write again finds out (a stream: start the query again)"
                )

    def _transactor(self, name: str | None) -> Transactor:
        return Transactor(self._options.gateways, producer=name, connect_timeout=limits.READ_RETRY_US / 1e6)

    def _let_go(self, producers: Sequence[str]) -> None:
        """Forget those who staged: what is left of it will never be visible. They go by themselves when idle for a day."""
        for at in range(0, len(producers), limits.FORGET_PRODUCERS_MAX):
            with contextlib.suppress(TuttiError), contextlib.closing(Control(self._options.gateways, _FORGET_S)) as control:
                control.forget(producers[at : at + limits.FORGET_PRODUCERS_MAX])


class StreamSink(_Sink, DataSourceStreamArrowWriter):
    """Writes micro-batches."""

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Staged:  # type: ignore[override]  # so are Spark's own
        """What a task does: see `stage`."""
        return self.stage(iterator)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - Spark's name
        """Make what the tasks of a micro-batch staged visible: all of it in one place of the log."""
        query = next((message.query for message in messages if isinstance(message, Staged)), "")
        if not query:
            raise UsageError("Spark did not name the query of this micro-batch: its tasks ran outside of a streaming query")
        self._commit(f"spark-{query}", {"batch": batchId}, messages)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - Spark's name
        """Let go what was staged. It takes nothing back: a commit may be in the log although it failed here."""
        self._let_go([message.producer for message in messages if isinstance(message, Staged) and message.producer])


class BatchSink(_Sink, DataSourceArrowWriter):
    """Writes a DataFrame once."""

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Staged:  # type: ignore[override]  # so are Spark's own
        """What a task does: see `stage`."""
        return self.stage(iterator)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Make what the tasks staged visible: all of it in one place of the log. In `foreachBatch` its micro-batch names it."""
        write_id = self._options.write_id
        whose = next((message for message in messages if isinstance(message, Staged) and message.query), None)
        if whose is not None:
            self._commit("-".join(filter(None, ("spark", whose.query, write_id))), {"batch": whose.batch}, messages)
        else:
            self._commit(f"spark-write-{write_id}" if write_id else None, {"write": write_id} if write_id else {}, messages)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Let go what was staged."""
        self._let_go([message.producer for message in messages if isinstance(message, Staged) and message.producer])


def digest(staged: Sequence[Staged]) -> str:
    """What tells one write from another, whatever order its rows come in: topics, and records and bytes of each."""
    topics: dict[str, list[int]] = {}
    for message in staged:
        for topic, size in message.payload.items():
            topics.setdefault(topic, [0, 0])[1] += size
        for part in message.parts:
            topics[part.topic][0] += part.records
    return hashlib.sha256(orjson.dumps(topics, option=orjson.OPT_SORT_KEYS)).hexdigest()[:32]


def _payload(records: pa.RecordBatch) -> int:
    """Bytes of keys and values."""
    columns: list[Any] = [records.column(name) for name in ("key", "value") if name in records.schema.names]
    return sum(pc.sum(pc.binary_length(column)).as_py() or 0 for column in columns)


def _property(name: str) -> str:
    """What Spark's driver says to the tasks of a job, empty if nothing."""
    context = TaskContext.get()
    return (context.getLocalProperty(name) if context is not None else "") or ""


def already(name: str, last: bytes, wanted: dict[str, Any]) -> bool:
    """Whether the transaction is in the log, as its producer's last progress says.

    Raises:
        Fenced: a later micro-batch of the query is: another driver goes on with the checkpoint.
        Refused: another one is, under the same number.
    """
    if not last:
        return False
    try:
        done = orjson.loads(last)
        number, what = done.get("batch", 0), (done["records"], done["digest"])
    except (ValueError, KeyError, AttributeError) as error:
        raise Refused(f"producer {name!r} has the progress {last!r}: it was not written by this sink", "progress") from error
    if number < wanted.get("batch", 0):
        return False
    if number > wanted.get("batch", 0):
        raise Fenced(
            f"micro-batch {wanted['batch']} of {name!r} comes after {number}, which is in the log: another driver goes on with "
            "this checkpoint, or an older copy of it was restored. Nothing was written; stop this one, or begin a new checkpoint"
        )
    if what != (wanted["records"], wanted["digest"]):
        raise Refused(
            f"{name!r} wrote {done['records']} records and comes again with {wanted['records']}, or with other topics or bytes: it "
            "is not the same write. Nothing was written; have the job give the same rows again (streaming.deterministic tells what "
            "does not); another write needs another writeId",
            "progress",
        )
    return True


def by_topic(batch: pa.RecordBatch, topic: str | None) -> Iterator[tuple[str, pa.RecordBatch]]:
    """The records of a batch for each topic, as `send_batch` takes them; `topic` is for all, else each has its own.

    Raises:
        UsageError: a record has no topic.
    """
    columns = {name: batch.column(name) for name in batch.schema.names if name != "topic"}
    for name in ("value", "key"):
        if name in columns and not pa.types.is_binary(columns[name].type):
            columns[name] = columns[name].cast(_BINARY)
    if "timestamp" in columns and columns["timestamp"].null_count:
        columns["timestamp"] = _present_where_null(columns["timestamp"])
    records = pa.RecordBatch.from_arrays(list(columns.values()), names=list(columns))
    if not batch.num_rows:
        return
    if topic is not None:
        yield topic, records
        return
    names = batch.column("topic").dictionary_encode()
    if names.null_count:
        raise UsageError("a record's column 'topic' is null: give each record one, or all of them by the option 'topic'")
    if len(names.dictionary) == 1:
        yield names.dictionary[0].as_py(), records
        return
    codes = names.indices
    for code, one in enumerate(map(str, names.dictionary.to_pylist())):
        yield one, records.filter(pc.equal(codes, pa.scalar(code, codes.type)))


def _present_where_null(times: pa.Array[Any]) -> pa.Array[Any]:
    return pc.fill_null(times, pa.scalar(time.time_ns() // 1000, pa.timestamp("us", "UTC")).cast(times.type))
