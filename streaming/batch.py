"""The batch reader: one range of the committed log, from gateways or from log directories with every gateway down."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSourceReader, InputPartition

from gateway.errors import UsageError
from streaming import planning
from streaming.origin import source_of
from streaming.records import read_partition

if TYPE_CHECKING:
    import pyarrow as pa

    from streaming.options import ReadOptions


class BatchReader(DataSourceReader):
    """Plans when an action runs: `latest` is the frontier of that moment, and each action plans anew."""

    def __init__(self, options: ReadOptions) -> None:
        self._options = options

    def partitions(self) -> list[InputPartition]:
        """Partitions that hold each record of the range once."""
        from gateway.client.source import begun

        options = self._options
        source = source_of(options)
        frontier = begun(source)
        start = planning.offset_of(source, "starting", options, frontier)
        end = planning.offset_of(source, "ending", options, frontier)
        if start > end and isinstance(options.start, int) and isinstance(options.end, int):
            raise UsageError(
                f"option {options.start_name!r} is {start}, behind {options.end_name!r} {end}: a range is [start, end)"
            )
        return planning.partitions(source, frontier, start, end, options)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The records of one partition as Arrow batches of the declared schema."""
        return read_partition(self._options, partition)
