"""Reads one partition in a Spark worker."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from functools import cache
from typing import TYPE_CHECKING

from tutti_spark.common import requirements
from tutti_spark.source.origin import partition_pieces
from tutti_spark.source.planning import RecordsPartition

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.datasource import InputPartition

    from tutti_spark.common.options import ReadOptions


def read_partition(options: ReadOptions, partition: InputPartition) -> Iterator[pa.RecordBatch]:
    """Yield the partition's records in offset order, as Arrow batches of exactly the declared schema.

    If a gateway fails, the read continues at another gateway from the same offset.
    """
    if not isinstance(partition, RecordsPartition):
        return  # Spark's placeholder for a read without partitions
    requirements.check()
    _freeze_modules()
    for piece in partition_pieces(options, partition):
        yield piece.batch


@cache
def _freeze_modules() -> None:
    """Exempt loaded modules from garbage collection: Spark's daemon collects after each task, which costs 20 ms for them."""
    gc.freeze()
