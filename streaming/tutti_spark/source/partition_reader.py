"""Reading a partition, in one of Spark's workers."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from functools import cache
from typing import TYPE_CHECKING

from tutti_spark.common import requirements
from tutti_spark.source.origin import pieces_of
from tutti_spark.source.planning import RecordsPartition

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.datasource import InputPartition

    from tutti_spark.common.options import ReadOptions


def read_partition(options: ReadOptions, partition: InputPartition) -> Iterator[pa.RecordBatch]:
    """The partition's records in offset order, as Arrow batches of exactly the declared schema.

    A gateway that goes away meanwhile is looked for, and the read goes on where it was.
    """
    if not isinstance(partition, RecordsPartition):
        return  # Spark's own stand-in where a read has no partition
    requirements.check()
    _keep_modules_out_of_the_way()
    for piece in pieces_of(options, partition):
        yield piece.batch


@cache
def _keep_modules_out_of_the_way() -> None:
    """Spark's Python daemon collects garbage after each task, for 20 ms over what modules hold for good. Once a process."""
    gc.freeze()
