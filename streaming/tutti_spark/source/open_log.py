"""Opens the origin of a read: gateways, data directories, or an archive."""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from typing import TYPE_CHECKING

from tutti import limits
from tutti.errors import UsageError
from tutti.sources.locality import is_local_host

if TYPE_CHECKING:
    from tutti.archive.catalog import Archive
    from tutti.sources.files import FileSource
    from tutti.sources.source import Source
    from tutti_spark.common.options import ReadOptions


def source_of(options: ReadOptions) -> Source:
    """Open the origin in the options, for any log that it has. Gateway connections are shared within the process."""
    log: Source | None = None
    if options.gateways is not None:
        from tutti.sources.spark_queries import QueryProgress

        log = QueryProgress(options.gateways, credentials=options.credentials)
    elif options.paths:
        from tutti.sources.files import FileSource

        log = FileSource(options.paths)
    if log is not None and options.archive is None:
        return log
    from tutti.sources.archive import ArchiveSource
    from tutti.sources.tiered import TieredSource

    archive = open_archive(options.archive or "", "")
    return ArchiveSource(archive) if log is None else TieredSource(log, archive)


def source_of_log(options: ReadOptions, log: str, seen: int, gateways: Iterable[tuple[str, int]] = ()) -> Source:
    """Open the log (without a log: the archive) for a worker that reads a planned partition.

    Args:
        options: options of the read. Their gateways may have left the group since.
        log: UUID of the log that the read was planned on.
        seen: lower bound of the frontier when the read was planned.
        gateways: host and port of each gateway known at that time, in order of preference. Gateways on this host come first.

    Raises:
        UsageError: the directories now have a different log.
        Refused: the gateways now have a different log (raised by the first request).
    """
    if options.gateways is not None:
        from tutti.common.gateway_url import Address, parse_url
        from tutti.sources.flight import FlightSource

        known = [*(Address(host, port) for host, port in gateways), *parse_url(options.gateways)]
        nearest = dict.fromkeys(sorted(known, key=lambda address: not is_local_host(address.host)))
        return FlightSource(nearest, seen=seen, log=log, credentials=options.credentials)
    if not options.paths:
        from tutti.sources.archive import ArchiveSource

        return ArchiveSource(open_archive(options.archive or "", log))
    files = _files(options.paths, log)
    found = files.frontier().log
    if found != log:
        _files.cache_clear()  # so the next task opens the directories again
        raise UsageError(f"{options.origin} holds log {found}, but the read was planned on log {log}: the log was replaced")
    return files


@lru_cache(maxsize=limits.ARCHIVES_OPEN_MAX)
def open_archive(where: str, log: str) -> Archive:
    """Open an archive once per process; the cache is keyed by log ("" for any), because an archive can be recreated."""
    from tutti.archive.catalog import Archive

    return Archive(where, log)


@lru_cache(maxsize=limits.SPARK_DIRECTORIES_MAX)
def _files(paths: tuple[str, ...], log: str) -> FileSource:
    """Open directories once per process, because Spark reuses workers; keyed by log, because a directory can be recreated."""
    from tutti.sources.files import FileSource

    return FileSource(paths)
