"""The sink: each task stages its records, and the driver makes the records of all tasks visible with one transaction.

The query id (from the checkpoint) and the batch number identify a micro-batch. The progress of the query's producer in the log
contains the batch number, so that no driver commits a micro-batch twice (`repeated_writes.py`).
"""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage

from tutti import limits
from tutti.batching.receipt import Receipt
from tutti.errors import Refused, TuttiError, Unknown, UsageError
from tutti.io.admin import AdminClient
from tutti.transactions import StagedBatch, StagingProducer, Transactor, commit_progress
from tutti_spark.sink.options import SinkOptions
from tutti_spark.sink.repeated_writes import Write, digests, find_committed
from tutti_spark.sink.topic_batches import Accumulator

_CONNECT_TIMEOUT_S = limits.READ_RETRY_US / 1e6
_CLEANUP_TIMEOUT_S = 5.0  # timeout of cleanup requests
_FEWER_BATCHES = (
    "Each task stages at least one batch per topic: repartition by topic before the write, so that a topic is in one "
    "task, or write fewer records at a time (maxRecordsPerTrigger)"
)


@dataclass(frozen=True)
class StagedRecords(WriterCommitMessage):
    """Result of a task.

    Attributes:
        producer: name of the producer that staged the records; empty if the task had no records.
        parts: the staged batches.
        payload: bytes of keys and values by topic.
        query, batch, run: query id, number and run of the micro-batch; empty, -1 and empty outside of a streaming query.
        instance: instance id of the producer, which a request to delete the producer must contain.
    """

    producer: str
    parts: tuple[StagedBatch, ...]
    payload: dict[str, int]
    query: str = ""
    batch: int = -1
    run: str = ""
    instance: bytes = field(default=b"", repr=False)


class _Sink:
    """Common part of the batch and the streaming writer. A writer connects to gateways only when it writes."""

    def __init__(self, options: SinkOptions) -> None:
        self._options = options

    def write(self, iterator: Iterator[pa.RecordBatch]) -> StagedRecords:
        """Stage the records of a Spark partition. The records of each topic keep their order."""
        query, micro_batch = _property("sql.streaming.queryId"), _property("streaming.sql.batchId")
        run = _run(_property("spark.jobGroup.id")) if query else ""
        staging: StagingProducer | None = None
        receipts: list[Receipt] = []
        payload: dict[str, int] = {}
        try:
            for topic, records in _accumulate(iterator, self._options.topic):
                if staging is None:
                    staging = StagingProducer(
                        self._options.gateways, connect_timeout=_CONNECT_TIMEOUT_S, credentials=self._options.credentials
                    )
                receipts += staging.stage(topic, records)
                payload[topic] = payload.get(topic, 0) + _payload(records)
            parts = tuple(StagingProducer.parts(receipts))
        except BaseException as error:
            if staging is not None:
                self._delete_producers([(staging.name, staging.instance)])
            if isinstance(error, Refused) and error.code == "limit":
                raise Refused(f"{error}. {_FEWER_BATCHES}", error.code) from error
            raise
        finally:
            if staging is not None:
                staging.close()
        name, instance = (staging.name, staging.instance) if staging is not None else ("", b"")
        return StagedRecords(name, parts, payload, query, int(micro_batch or -1), run, instance)

    def _commit(
        self, name: str | None, messages: Sequence[WriterCommitMessage | None], batch: int = -1, stream: bool = False
    ) -> None:
        staged = [message for message in messages if isinstance(message, StagedRecords)]
        parts = [part for message in staged for part in message.parts]
        if not parts:
            return
        run = "" if stream else next((message.run for message in staged if message.parts), "")
        records, topics = sum(part.records for part in parts), digests(*_totals_by_topic(staged))
        write = Write(name or "", batch, stream, bool(self._options.write_id), run, parts[0].position, records, *topics)
        self._make_visible(name, write, parts)
        self._release(staged)

    def _make_visible(self, name: str | None, write: Write, parts: Sequence[StagedBatch]) -> None:
        """Commit the write once. If the outcome is unknown and the write has a name, look the outcome up under the next epoch."""
        for last in (name is None, True):
            try:
                with self._transactor(name) as transactor:
                    done = find_committed(transactor.resume().progress, write)
                    if done is None:
                        transactor.commit(parts, write.progress()).result()
                        return
                if name is not None and write.run not in ("", done.get("run")):
                    self._commit_repeat(name, write, parts[0].topic)
                return
            except Unknown as error:
                if last:
                    raise Unknown(f"it is unknown whether {write} is in the log ({error}): {_unknown_advice(name)}") from error

    def _commit_repeat(self, name: str, write: Write, topic: str) -> None:
        """Store this run's id in the progress of a repeated write, so that the next write of this run counts as a different write.

        The progress commits with one staged record, which never becomes visible.
        """
        commit_progress(
            self._options.gateways,
            name,
            topic,
            # Check again, because another write of this run may have committed since the first check.
            lambda progress: write.progress(find_committed(progress, write)),
            connect_timeout=_CONNECT_TIMEOUT_S,
            credentials=self._options.credentials,
        )

    def _transactor(self, name: str | None) -> Transactor:
        return Transactor(
            self._options.gateways, producer=name, connect_timeout=_CONNECT_TIMEOUT_S, credentials=self._options.credentials
        )

    def _release(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Delete the producers of the tasks, which drops their staged records that no transaction has made visible."""
        staged = (message for message in messages if isinstance(message, StagedRecords))
        self._delete_producers([(message.producer, message.instance) for message in staged if message.producer])

    def _delete_producers(self, producers: Sequence[tuple[str, bytes]]) -> None:
        """Delete the state of producers. If this fails, the log deletes the state after an idle day."""
        for at in range(0, len(producers), limits.DELETE_PRODUCERS_MAX):
            connection = AdminClient(self._options.gateways, _CLEANUP_TIMEOUT_S, credentials=self._options.credentials)
            with contextlib.suppress(TuttiError), contextlib.closing(connection) as control:
                control.forget(*zip(*producers[at : at + limits.DELETE_PRODUCERS_MAX], strict=True))


class StreamSink(_Sink, DataSourceStreamArrowWriter):  # type: ignore[misc]  # as in Spark, it takes Arrow
    """Writes the micro-batches of a streaming query."""

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - Spark's name
        """Make the staged records of a micro-batch visible, all at one position of the log."""
        query = next((message.query for message in messages if isinstance(message, StagedRecords)), "")
        if not query:
            raise UsageError("Spark did not name the query of this micro-batch: the tasks ran outside of a streaming query")
        self._commit(f"spark-{query}", messages, batchId, stream=True)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - Spark's name
        """Release the staged records. This does not undo a commit, even if the outcome of the commit is unknown to the driver."""
        self._release(messages)


class BatchSink(_Sink, DataSourceArrowWriter):  # type: ignore[misc]  # as in Spark
    """Writes a DataFrame once."""

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Make the staged records visible, all at one position of the log.

        In `foreachBatch`, query id, batch number and writeId identify the write.
        """
        write_id = self._options.write_id
        in_query = next((message for message in messages if isinstance(message, StagedRecords) and message.query), None)
        if in_query is not None and not (in_query.run or write_id):
            raise UsageError(
                "this write in foreachBatch cannot be identified: it has no writeId, and the function replaced the job group in "
                "which Spark stores the run of the query. Give the write a writeId, or set no job group. Nothing was written"
            )
        if in_query is not None:
            self._commit("-".join(filter(None, ("spark", in_query.query, write_id))), messages, in_query.batch)
        else:
            self._commit(f"spark-write-{write_id}" if write_id else None, messages)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Release the staged records."""
        self._release(messages)


def _accumulate(batches: Iterator[pa.RecordBatch], topic: str | None) -> Iterator[tuple[str, pa.RecordBatch]]:
    """Yield a task's records by topic, in batches of about `SLICE_BYTES`."""
    accumulator = Accumulator(topic)
    for batch in batches:
        yield from accumulator.add(batch)
    yield from accumulator.drain()


def _unknown_advice(name: str | None) -> str:
    """Return advice for the error message of a commit with an unknown outcome."""
    if name is None:
        return "check the log for its records before you repeat the write; a write with the option writeId can simply be repeated"
    return "repeat the same write, which checks the log first (a stream: start the query again)"


def _totals_by_topic(staged: Sequence[StagedRecords]) -> tuple[dict[str, int], dict[str, int]]:
    """Return the number of records by topic, and the number of bytes by topic."""
    records: dict[str, int] = {}
    sizes: dict[str, int] = {}
    for message in staged:
        for topic, size in message.payload.items():
            sizes[topic] = sizes.get(topic, 0) + size
        for part in message.parts:
            records[part.topic] = records.get(part.topic, 0) + part.records
    return records, sizes


def _run(group: str) -> str:
    """Return the id of a query's run, which Spark stores as job group; empty if foreachBatch's function set a different group."""
    try:
        return str(uuid.UUID(group))
    except ValueError:
        return ""


def _payload(records: pa.RecordBatch) -> int:
    """Return the number of bytes of keys and values."""
    columns: list[Any] = [records.column(name) for name in ("key", "value") if name in records.schema.names]
    return sum(pc.sum(pc.binary_length(column)).as_py() or 0 for column in columns)


def _property(name: str) -> str:
    """Return a local property that Spark's driver has set for the tasks of a job; empty without this property."""
    context = TaskContext.get()
    return (context.getLocalProperty(name) if context is not None else "") or ""
