"""Where records come from: gateways, or data directories."""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from typing import TYPE_CHECKING

from gateway.core import limits
from gateway.errors import UsageError

if TYPE_CHECKING:
    from gateway.client.files import Files
    from gateway.client.source import Source
    from streaming.options import ReadOptions


def source_of(options: ReadOptions) -> Source:
    """What the options name, whatever log it has now. Connections to gateways belong to the process and are shared."""
    if options.gateways is not None:
        from gateway.client.reads import Reads

        return Reads(options.gateways)
    from gateway.client.files import Files

    return Files(options.paths)


def source_of_log(options: ReadOptions, log: str, seen: int, gateways: Iterable[tuple[str, int]] = ()) -> Source:
    """The same for a worker that reads what was planned on log `log` when its frontier was at `seen` or above, and when `gateways`
    (host and port) were known: the first of them answered then, and what the options name may be gone by now.

    Raises:
        UsageError: the directories hold another log by now.
        Refused: the gateways do (when they are asked).
    """
    if options.gateways is not None:
        from gateway.client.reads import Reads
        from gateway.client.url import Address, parse_url

        known = [*(Address(host, port) for host, port in gateways), *parse_url(options.gateways)]
        return Reads(dict.fromkeys(known), seen=seen, log=log)
    files = _files(options.paths, log)
    found = files.frontier().log
    if found != log:
        _files.cache_clear()
        raise UsageError(f"{options.origin} holds log {found}, and the read was planned on log {log}: it was replaced meanwhile")
    return files


@lru_cache(maxsize=limits.SPARK_DIRECTORIES_MAX)
def _files(paths: tuple[str, ...], log: str) -> Files:
    """Opened once a process: Spark's workers live on from task to task. By log, as a directory can be made anew."""
    from gateway.client.files import Files

    return Files(paths)
