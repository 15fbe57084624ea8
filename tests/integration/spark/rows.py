"""Helpers of this folder: records in, rows out, and observed queries."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from tests.support.gateway_process import GatewayProcess
from tests.support.waiting import wait_until
from tutti import Producer
from tutti.sources.flight import FlightSource

WAIT_S = 100


def send(url: str, topic: str, values: Iterable[bytes], **options: Any) -> list[int]:
    """Send records and wait until they are committed; their offsets."""
    with Producer(url, **options) as producer:
        receipts = [producer.send(topic, value, key=value[:1]) for value in values]
    return [receipt.result(timeout=WAIT_S) for receipt in receipts]


def numbered(prefix: str, count: int, first: int = 0) -> list[bytes]:
    """Return values that contain their index."""
    return [f"{prefix}{number}".encode() for number in range(first, first + count)]


def until(happened: Callable[[], object], what: str, query: StreamingQuery | None = None) -> None:
    """Wait for a condition, and fail at once query's error the error of the query if there is one."""

    def checked() -> object:
        if query is not None and query.exception() is not None:
            raise AssertionError(f"waiting for {what}: {query.exception()}")
        return happened()

    wait_until(checked, what, seconds=WAIT_S)


@contextmanager
def settings(spark: SparkSession, given: Mapping[str, str]) -> Iterator[None]:
    """Settings of the session while the block runs."""
    before = {name: spark.conf.get(name, None) for name in given}
    for name, value in given.items():
        spark.conf.set(name, value)
    try:
        yield
    finally:
        for name, old in before.items():
            spark.conf.unset(name) if old is None else spark.conf.set(name, old)


def until_tick(gateway: GatewayProcess) -> None:
    """Wait for a tick after the sent records, at which a micro-batch may end."""
    reads = FlightSource(gateway.url)
    frontier = reads.frontier().offset
    until(lambda: reads.tick_end(frontier - 1, frontier, frontier, 1) == frontier, "a tick behind the records")


class Query:
    """A streaming query whose values are collected by batch, as a table keyed by batch would hold them."""

    def __init__(self, spark: SparkSession, origin: str | Path, checkpoint: Path, **options: object) -> None:
        """`origin` is an address of gateways, or the directory of one."""
        where = "path" if isinstance(origin, Path) else "gateways"
        self._stream = spark.readStream.format("tutti").options(**{k: str(v) for k, v in (options | {where: origin}).items()})
        self._checkpoint = checkpoint
        self.batches: dict[int, list[bytes]] = {}
        self.fail_at: int | None = None
        self.query: StreamingQuery | None = None

    def _take(self, rows: DataFrame, batch: int) -> None:
        values = [bytes(row["value"]) for row in rows.select("value").collect()]
        if batch == self.fail_at:
            raise RuntimeError(f"told to fail in batch {batch}")
        self.batches[batch] = values

    def start(self, available_now: bool = False) -> Query:
        """Start it, or start it again from its checkpoint."""
        writer = self._stream.load().writeStream.foreachBatch(self._take).option("checkpointLocation", str(self._checkpoint))
        self.query = (writer.trigger(availableNow=True) if available_now else writer).start()
        return self

    def run(self) -> Query:
        """Read the existing records, then end."""
        self.start(available_now=True).running.awaitTermination(WAIT_S)
        return self

    @property
    def running(self) -> StreamingQuery:
        assert self.query is not None
        return self.query

    @property
    def values(self) -> list[bytes]:
        """All values, in the order of batches."""
        return [value for batch in sorted(self.batches) for value in self.batches[batch]]

    def wait_for(self, count: int) -> None:
        """Wait until so many values were processed."""
        until(lambda: len(self.values) >= count, f"{count} values", self.running)

    def stop(self) -> None:
        self.running.stop()


class Meanwhile(Query):
    """Does something in the middle of its first micro-batch."""

    act: Callable[[], object] = staticmethod(lambda: None)

    def _take(self, rows: DataFrame, batch: int) -> None:
        if batch == 0:
            self.act()
        super()._take(rows, batch)
