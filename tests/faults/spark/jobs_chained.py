"""Two jobs of a chain, of one driver or two: `python -m tests.faults.spark.jobs_chained LINK...`, each a `Link` in JSON.

`first` reads events "ID KEY", lets each id through once (state: the ids that it saw), and writes them through the streaming sink.
`second` keeps for each key how many events there are and the sum of their ids (state), and writes what changed in a micro-batch,
"KEY EVENTS IDS", in foreachBatch. First attempts of tasks at micro-batch 0 of `first` die when they have staged. Both jobs
stand still at gates around the sink's commit:

staged      the tasks have staged their records, no transaction is sent
committed   the transaction is in the log, Spark's commit log has not the micro-batch
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.datasource import DataSourceStreamWriter, DataSourceWriter, WriterCommitMessage
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.types import StructType

from tests.faults.spark.gates import pass_through
from tests.faults.spark.job import SETTINGS, Task
from tests.faults.spark.processes import Job
from tutti_spark.launch import LOCAL_SETTINGS
from tutti_spark.sink.options import SinkOptions, check_columns, parse
from tutti_spark.sink.sink import BatchSink, StagedRecords, StreamSink
from tutti_spark.source.data_source import TuttiDataSource

FORMAT = "tutti_at_gates"


@dataclass(frozen=True)
class Link(Task):
    """A job of the chain: `kind` is first or second, `topic` where its records go. `gates` must be there."""

    kind: str = "first"
    topic: str = "b"


class Chained(Job):
    """The processes of one driver. What it says goes to the directory of its first job."""

    def __init__(self, *links: Link) -> None:
        super().__init__(links[0])
        self._links = links

    @property
    def command(self) -> list[str]:
        return ["tests.faults.spark.jobs_chained", *(link.text() for link in self._links)]


class StreamAtGates(StreamSink):
    """The sink for micro-batches, which stands still around its commit."""

    def __init__(self, options: SinkOptions, gates: str) -> None:
        super().__init__(options)
        self._gates = gates

    def write(self, iterator: Iterator[pa.RecordBatch]) -> StagedRecords:  # type: ignore[override]  # so are Spark's own
        staged = super().write(iterator)
        context = TaskContext.get()
        if staged.batch == 0 and context is not None and context.attemptNumber() == 0:
            Path(self._gates, f"died-{os.getpid()}").touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return staged

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - Spark's name
        pass_through(self._gates, batchId, "staged")
        super().commit(messages, batchId)
        pass_through(self._gates, batchId, "committed")


class BatchAtGates(BatchSink):
    """The sink for a DataFrame of a micro-batch, which stands still around its commit."""

    def __init__(self, options: SinkOptions, gates: str) -> None:
        super().__init__(options)
        self._gates = gates

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        batch = next(message.batch for message in messages if isinstance(message, StagedRecords))
        pass_through(self._gates, batch, "staged")
        super().commit(messages)
        pass_through(self._gates, batch, "committed")


class SourceAtGates(TuttiDataSource):
    """The format of these sinks; the option `gates` is theirs."""

    @classmethod
    def name(cls) -> str:
        return FORMAT

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        return BatchAtGates(self._sink_options(schema, overwrite, stream=False), str(self.options["gates"]))

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:  # noqa: N802 - Spark's name
        return StreamAtGates(self._sink_options(schema, overwrite, stream=True), str(self.options["gates"]))

    def _sink_options(self, schema: StructType, overwrite: bool, stream: bool) -> SinkOptions:
        options = parse({key: value for key, value in self.options.items() if key != "gates"}, stream=stream)
        check_columns(schema, options, overwrite=overwrite)
        return options


def once(records: DataFrame) -> DataFrame:
    """What `first` writes: each id once, with its key."""
    parts = f.split(f.col("value").cast("string"), " ")
    events = records.select(parts[0].alias("id"), parts[1].alias("key")).dropDuplicates(["id"])
    return events.select(f.col("key"), f.concat_ws(" ", "id", "key").alias("value"))


def totals(records: DataFrame) -> DataFrame:
    """What `second` writes: keys that changed, with the events that there are and the sum of their ids."""
    parts = f.split(f.col("value").cast("string"), " ")
    events = records.select(parts[0].cast("long").alias("id"), parts[1].alias("key"))
    counts = events.groupBy("key").agg(f.count("*").alias("events"), f.sum("id").alias("ids"))
    return counts.select(f.concat_ws(" ", "key", "events", "ids").alias("value"))


def model(kind: str, batches: Iterable[list[bytes]]) -> list[list[bytes]]:
    """What a job writes for micro-batches of these records, sorted."""
    found = []
    seen: set[bytes] = set()
    counted: dict[bytes, tuple[int, int]] = {}
    for batch in batches:
        events = [value.split(b" ") for value in batch]
        if kind == "first":
            new = {event for event, _ in events} - seen
            found.append(sorted({b"%s %s" % (event, key) for event, key in events if event in new}))
            seen |= new
        else:
            for event, key in events:
                count, total = counted.get(key, (0, 0))
                counted[key] = count + 1, total + int(event)
            found.append(sorted(b"%s %d %d" % (key, *counted[key]) for key in {key for _, key in events}))
    return found


def start(spark: SparkSession, link: Link) -> StreamingQuery:
    """The query, from its checkpoint if it has one."""
    spark.dataSource.register(SourceAtGates)
    records = spark.readStream.format("tutti").options(**(link.source | {"columns": "value"})).load()
    sink: dict[str, Any] = {"gateways": link.source["gateways"], "topic": link.topic, "gates": link.gates}
    if link.kind == "first":
        writer = once(records).writeStream.format(FORMAT).options(**sink).outputMode("append")
    else:

        def write(rows: DataFrame, _: int) -> None:
            rows.write.format(FORMAT).options(**sink).mode("append").save()

        writer = totals(records).writeStream.foreachBatch(write).outputMode("update")
    return writer.option("checkpointLocation", str(Path(link.directory, "checkpoint"))).start()


def main() -> None:
    """Run until killed, or until one of the jobs fails."""
    links = [Link.parse(argument) for argument in sys.argv[1:]]
    builder = SparkSession.builder.master(links[0].master)
    for name, value in (LOCAL_SETTINGS | SETTINGS | {"spark.local.dir": links[0].directory} | links[0].settings).items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    for link in links:
        start(spark, link)
    spark.streams.awaitAnyTermination()


if __name__ == "__main__":
    main()
