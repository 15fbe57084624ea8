"""The batch reader: reads one range of the committed log from gateways, or from log directories while all gateways are down."""

from __future__ import annotations

import time
import warnings
from collections.abc import Iterator
from contextlib import suppress
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSourceReader, InputPartition

from tutti import limits
from tutti.errors import TuttiError, UsageError
from tutti_spark.source import planning
from tutti_spark.source.open_log import source_of
from tutti_spark.source.partition_reader import read_partition
from tutti_spark.source.planning import RecordsPartition

if TYPE_CHECKING:
    import pyarrow as pa

    from tutti_spark.common.options import ReadOptions


# The class has no `pushFilters`: with filters, Spark (4.2.0, 4.3.0) wrongly reuses filtered partitions for other queries.
class BatchReader(DataSourceReader):
    """Plans the read at the first action. The position `latest` is the frontier at that moment.

    Spark (4.2.0 and 4.3.0) keeps the plan for all later actions on the same relation, and does not call the reader again.
    Therefore, each task checks the age of its plan, and warns if the plan lacks newer records.
    """

    def __init__(self, options: ReadOptions) -> None:
        self._options = options

    def partitions(self) -> list[InputPartition]:
        """Return partitions that contain each record of the range exactly once."""
        from tutti.sources.source import wait_for_log

        options = self._options
        source = source_of(options)
        frontier = wait_for_log(source)
        start = planning.offset_of(source, "starting", options, frontier)
        end = planning.offset_of(source, "ending", options, frontier)
        if start > end and isinstance(options.start, int) and isinstance(options.end, int):
            raise UsageError(f"option {options.start_name!r} is {start}, above {options.end_name!r} {end}: a range is [start, end)")
        planning.warn_about_missing_topics(source, options, frontier)
        planned = planning.partitions(source, frontier, start, end, options)
        last = planned[-1] if planned else None
        if isinstance(last, RecordsPartition) and options.end == "latest":
            last.planned = time.time()
        return planned

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the records of one partition as Arrow batches of the declared schema."""
        if self._options.end == "latest":
            self._warn_if_older(partition)
        return read_partition(self._options, partition)

    def _warn_if_older(self, partition: InputPartition) -> None:
        """Warn in the worker's log if the log has records that are newer than the plan of a read up to `latest`."""
        with suppress(TuttiError):  # the read itself reports a lasting error
            if not isinstance(partition, RecordsPartition):  # Spark's placeholder for an empty plan
                if self.partitions():
                    _warn("it was planned while the range had no records, and now it has some")
                return
            age = 0.0 if partition.planned is None else time.time() - partition.planned
            if age >= limits.SPARK_PLAN_AGE_US_MAX / 1e6:
                more = source_of(self._options).frontier().offset - partition.end
                if more > 0:
                    _warn(f"the range was planned {age:.0f} s ago, up to {partition.end}, and the log has {more} more offsets now")


def _warn(what: str) -> None:
    warnings.warn(
        f"this read omits newer records: {what}. Spark plans a DataFrame once, at its first action: call load() again, or use "
        "a table (docs/how-to/spark.md, A batch DataFrame keeps its range)",
        stacklevel=2,
    )
