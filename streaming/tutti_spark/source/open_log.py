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
    """Open the origin in the options, with any log. All sources of the process share their connections to gateways."""
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

    archive = open_archive(options.archive or "", "")
    return ArchiveSource(archive) if log is None else TieredSource(log, archive)


def source_of_log(options: ReadOptions, log: str, seen: int, gateways: Iterable[tuple[str, int]] = ()) -> Source:
    """Open the log (for a read of an archive alone: the archive) in a worker that reads a planned partition.

    Gateways on the worker's host come first. The gateways in the options may have left the group since the read was planned.

    Args:
        options: options of the read.
        log: UUID of the log in the plan.
        seen: lower bound of the frontier in the plan.
        gateways: host and port of each gateway in the plan, in order of preference.

    Raises:
        UsageError: the directories contain a different log than the plan.
        Refused: the gateways have a different log than the plan; the first request raises this error.
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
        _files.cache_clear()  # make the next task open the directories again
        raise UsageError(
            f"{options.origin} contains log {found}, but the read was planned on log {log}: the log was replaced, so start the "
            "read again"
        )
    return files


@lru_cache(maxsize=limits.ARCHIVES_OPEN_MAX)
def open_archive(where: str, log: str) -> Archive:
    """Open an archive once per process and log ("" for any log). An archive of another log can replace it at the same path."""
    from tutti.archive.catalog import Archive

    return Archive(where, log)


@lru_cache(maxsize=limits.SPARK_DIRECTORIES_MAX)
def _files(paths: tuple[str, ...], log: str) -> FileSource:
    """Open directories once per process and log. Directories of another log can replace them while Spark reuses the worker."""
    from tutti.sources.files import FileSource

    return FileSource(paths)
