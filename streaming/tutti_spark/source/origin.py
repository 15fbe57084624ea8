"""Opens the origin of a read: gateways, data directories, or an archive."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator
from functools import lru_cache
from typing import TYPE_CHECKING

from tutti import limits
from tutti.errors import Damaged, OffsetOutOfRange, TuttiError, Unavailable, UsageError
from tutti.sources.locality import is_local_host
from tutti_spark.source.planning import topics_text

if TYPE_CHECKING:
    from tutti.archive.catalog import Archive
    from tutti.sources.files import FileSource
    from tutti.sources.source import ScanBatch, Source
    from tutti_spark.common.options import ReadOptions
    from tutti_spark.source.planning import RecordsPartition

#: Advice for a partition that could not be read. Other errors contain their own advice.
_ADVICE: dict[type[TuttiError], str] = {
    Unavailable: "start one of these gateways, or name others in `gateways`; the query resumes from its checkpoint",
    OffsetOutOfRange: "retention has removed records since this was planned: keep more, or set failOnDataLoss to false",
    Damaged: "another gateway may have intact copies: `tutti status` shows whether this one repairs them, `tutti log verify` lists "
    "the corrupt frames",
}


def source_of(options: ReadOptions) -> Source:
    """Open the origin that the options name, whichever log it holds now. Gateway connections are shared within the process."""
    log: Source | None = None
    if options.gateways is not None:
        from tutti.sources.query_progress import QueryProgress

        log = QueryProgress(options.gateways, credentials=options.credentials)
    elif options.paths:
        from tutti.sources.files import FileSource

        log = FileSource(options.paths)
    if log is not None and options.archive is None:
        return log
    from tutti.sources.archive import ArchiveSource
    from tutti.sources.tiered import TieredSource

    archive = _archive(options.archive or "", "")
    return ArchiveSource(archive) if log is None else TieredSource(log, archive)


def source_of_log(options: ReadOptions, log: str, seen: int, gateways: Iterable[tuple[str, int]] = ()) -> Source:
    """Open the log (without a log: the archive) for a worker that reads a planned partition.

    Args:
        options: of the read. Their gateways may be gone by now.
        log: UUID of the log that the read was planned on.
        seen: lower bound of the frontier when the read was planned.
        gateways: host and port of each gateway known at that time, in order of preference. Gateways on this host come first.

    Raises:
        UsageError: the directories hold another log now.
        Refused: the gateways hold another log now (raised by the first request).
    """
    if options.gateways is not None:
        from tutti.common.address import Address, parse_url
        from tutti.sources.flight import FlightSource

        known = [*(Address(host, port) for host, port in gateways), *parse_url(options.gateways)]
        nearest = dict.fromkeys(sorted(known, key=lambda address: not is_local_host(address.host)))
        return FlightSource(nearest, seen=seen, log=log, credentials=options.credentials)
    if not options.paths:
        from tutti.sources.archive import ArchiveSource

        return ArchiveSource(_archive(options.archive or "", log))
    files = _files(options.paths, log)
    found = files.frontier().log
    if found != log:
        _files.cache_clear()
        raise UsageError(f"{options.origin} holds log {found}, but the read was planned on log {log}: the log was replaced")
    return files


def partition_pieces(options: ReadOptions, partition: RecordsPartition) -> Iterator[ScanBatch]:
    """Yield the records of a partition in offset order.

    A worker reads the files of a gateway on its own host where permitted. With failOnDataLoss=false it skips records that retention
    removes during the read, with a warning.

    Raises:
        TuttiError: as `source_of_log` and `Source.pieces`; an error of a read names the records, the partition and the gateway.
    """
    source = source_of_log(options, partition.log, partition.end, partition.gateways)
    position = partition.start
    while True:
        try:
            for piece in _pieces_with_context(source, options, partition, position):
                position = piece.next
                yield piece
            return
        except OffsetOutOfRange:
            log_start = source.frontier().start
            if options.fail_on_data_loss or log_start <= position:
                raise
            warnings.warn(
                f"records {position} to {min(log_start, partition.end) - 1} were removed from the log of {options.origin} before "
                "they were read: they are skipped, because failOnDataLoss is false",
                stacklevel=2,
            )
            position = log_start
            if position >= partition.end:
                return


def _tiered_pieces(source: Source, options: ReadOptions, partition: RecordsPartition, start: int) -> Iterator[ScanBatch]:
    if options.archive is None or not _has_log(options):
        return _log_pieces(source, options, partition, start)
    from tutti.sources.tiered import read_tiered

    return read_tiered(
        _archive(options.archive, partition.log),
        partition.begins,
        start,
        partition.end,
        partition.topics,
        options.columns,
        lambda position: _log_pieces(source, options, partition, position),
        lambda: source.frontier().start,
    )


def _has_log(options: ReadOptions) -> bool:
    """True if the options name a log besides the archive."""
    return options.gateways is not None or bool(options.paths)


def _log_pieces(source: Source, options: ReadOptions, partition: RecordsPartition, start: int) -> Iterator[ScanBatch]:
    asked = start, partition.end, partition.topics, options.columns
    here = [address for address in source.addresses if options.short_circuit and is_local_host(address.host)]
    if not here:
        return source.pieces(*asked, absent_ok=True)
    from tutti.sources.local_files import scan_local_first

    return scan_local_first(here, source, partition.log, *asked, credentials=options.credentials)


def _pieces_with_context(source: Source, options: ReadOptions, partition: RecordsPartition, start: int) -> Iterator[ScanBatch]:
    """Yield the records from `start` on; an error names the unread records, the gateway, and what to do."""
    position = start
    try:
        for piece in _tiered_pieces(source, options, partition, start):
            position = piece.next
            yield piece
    except TuttiError as error:
        where = f"gateway {source.addresses[0]}" if source.addresses else options.origin
        advice = next((f"; {text}" for kind, text in _ADVICE.items() if isinstance(error, kind)), "")
        error.args = (
            f"records {position} to {partition.end - 1} of {topics_text(partition.topics)} could not be read from "
            f"{where} (the partition "
            f"begins at {partition.start}, its log is {partition.log}): {error}{advice}",
            *error.args[1:],
        )
        raise


@lru_cache(maxsize=limits.ARCHIVES_OPEN_MAX)
def _archive(where: str, log: str) -> Archive:
    """Open an archive once per process; the cache is keyed by log ("" for any), because an archive can be recreated."""
    from tutti.archive.catalog import Archive

    return Archive(where, log)


@lru_cache(maxsize=limits.SPARK_DIRECTORIES_MAX)
def _files(paths: tuple[str, ...], log: str) -> FileSource:
    """Open directories once per process, because Spark reuses workers; keyed by log, because a directory can be recreated."""
    from tutti.sources.files import FileSource

    return FileSource(paths)
