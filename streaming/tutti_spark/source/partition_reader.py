"""Reads one partition in a Spark worker."""

from __future__ import annotations

import gc
import warnings
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache, partial
from typing import TYPE_CHECKING

from tutti.errors import Damaged, OffsetOutOfRange, TuttiError, Unavailable
from tutti.sources.locality import is_local_host
from tutti_spark.common import requirements
from tutti_spark.source.open_log import open_archive, source_of_log
from tutti_spark.source.planning import RecordsPartition, topics_text

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.datasource import InputPartition

    from tutti.data.scan_request import ScanBatch, ScanRequest
    from tutti.sources.source import Source
    from tutti_spark.common.options import ReadOptions

#: Advice in the error message for a partition that cannot be read, by class of error; other errors contain their own advice.
_ADVICE: dict[type[TuttiError], str] = {
    Unavailable: "start one of these gateways, or name others in `gateways`; the query resumes from its checkpoint",
    OffsetOutOfRange: "retention has removed records since this was planned: keep more, or set failOnDataLoss to false",
    Damaged: "another gateway may have intact copies: `tutti status` shows whether this one repairs them, `tutti log verify` lists "
    "the corrupt frames",
}


def read_partition(options: ReadOptions, partition: InputPartition) -> Iterator[pa.RecordBatch]:
    """Yield the partition's records in offset order, as Arrow batches of exactly the declared schema.

    If a gateway fails, the read continues at another gateway from the same offset. With failOnDataLoss=false, the read skips
    records that retention removes during the read, and logs a warning.

    Raises:
        TuttiError: as `source_of_log` and `Source.scan`; the message contains the unread records, the partition and the gateway.
    """
    if not isinstance(partition, RecordsPartition):
        return  # Spark passes a placeholder partition if the plan is empty
    requirements.check()
    _freeze_modules()
    from tutti.data.frames.columns import COLUMNS
    from tutti.data.scan_request import ScanRequest

    source = source_of_log(options, partition.log, partition.end, partition.gateways)
    scan = _scan_function(source, options, partition)
    # The topics existed when the read was planned, but a gateway that lags may not know a new topic yet (`absent_ok`).
    request = ScanRequest(partition.start, partition.end, partition.topics, options.columns or COLUMNS, absent_ok=True)
    while request.start < partition.end:
        position = request.start
        try:
            for found in scan(request):
                position = found.next
                yield found.batch
            return
        except TuttiError as error:
            _add_context(error, source, options, partition, position)
            if not isinstance(error, OffsetOutOfRange):
                raise
            log_start = source.frontier().start
            if options.fail_on_data_loss or log_start <= position:
                raise
            warnings.warn(
                f"records {position} to {min(log_start, partition.end) - 1} were removed from the log of {options.origin} before "
                "they were read: they are skipped, because failOnDataLoss is false",
                stacklevel=2,
            )
            request = replace(request, start=log_start)


def _scan_function(
    source: Source, options: ReadOptions, partition: RecordsPartition
) -> Callable[[ScanRequest], Iterator[ScanBatch]]:
    """Return the function that scans a part of the partition: from an archive, local files or gateways, as the options permit."""

    def scan_log(request: ScanRequest) -> Iterator[ScanBatch]:
        local = [address for address in source.addresses if options.short_circuit and is_local_host(address.host)]
        if not local:
            return source.scan(request)
        from tutti.sources.short_circuit import scan_local_first

        return scan_local_first(local, source, partition.log, request, options.credentials)

    has_log = options.gateways is not None or bool(options.paths)
    if options.archive is None or not has_log:
        return scan_log
    from tutti.sources.tiered import scan_tiered

    archive = open_archive(options.archive, partition.log)
    return partial(scan_tiered, archive, partition.log_start, scan_log=scan_log, refresh_log_start=lambda: source.frontier().start)


def _add_context(error: TuttiError, source: Source, options: ReadOptions, partition: RecordsPartition, position: int) -> None:
    """Add the unread records, the gateway or directory, and advice to the message of an error."""
    where = f"gateway {source.addresses[0]}" if source.addresses else options.origin
    advice = next((f"; {text}" for kind, text in _ADVICE.items() if isinstance(error, kind)), "")
    error.args = (
        f"records {position} to {partition.end - 1} of {topics_text(partition.topics)} could not be read from {where} (the "
        f"partition begins at {partition.start}, its log is {partition.log}): {error}{advice}",
        *error.args[1:],
    )


@cache
def _freeze_modules() -> None:
    """Exempt loaded modules from garbage collection, which saves 20 ms in each task.

    Spark's daemon runs a full collection after each task.
    """
    gc.freeze()
