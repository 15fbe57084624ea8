"""Short-circuit reads: a client on a gateway's host maps the gateway's files instead of receiving records from it.

The gateway's public status contains the path of its data directory. The same path may be a different directory on this host, such
as a copy or the directory of another container. The client therefore checks that the directory has the log and the gateway name of
the status, and that a running local process writes the directory. All directories of a log have equal decided records, except the
directory of a gateway that a forced roster removed. The client therefore repeats the check for each range.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace

from tutti import limits
from tutti.common.credentials import Credentials
from tutti.common.gateway_url import Address
from tutti.data.scan_request import ScanBatch, ScanRequest
from tutti.errors import TuttiError
from tutti.io.admin import AdminClient
from tutti.sources.files import FileSource
from tutti.sources.source import Source

LOG = logging.getLogger("tutti.client")

#: (process, gateway, log) -> (the gateway's files, 0), or (None, time of the next attempt in monotonic s) after a failure.
_known: dict[tuple[int, Address, str], tuple[FileSource | None, float]] = {}


def scan_local_first(
    addresses: Iterable[Address], source: Source, log: str, request: ScanRequest, credentials: Credentials | None = None
) -> Iterator[ScanBatch]:
    """Scan as `source.scan` does, but from the files of a local gateway for as long as the client can read them.

    Args:
        addresses: gateways of this host. All readers start with the lowest address, so they share its pages in the page cache.
        source: serves the rest of the range if the files are unreadable, corrupt, removed or too short.
        log: uuid of the log.
        request: a request for a decided range of the log.
        credentials: credentials for the status request that returns the data directory.
    """
    position = request.start
    for address in sorted(addresses):
        files = local_files_of(address, log, lambda gateway: _status(gateway, credentials))
        if files is None:
            continue
        try:
            for batch in files.scan(request):
                position = batch.next
                yield batch
            return
        except (TuttiError, OSError) as error:
            reason = f"reading from gateways instead of {', '.join(files.paths)}, from offset {position} on: {error}"
            _cache_failure(address, log, reason)
            break
    yield from source.scan(replace(request, start=position))


def local_files_of(
    address: Address, log: str, status_of: Callable[[Address], dict[str, object]] | None = None
) -> FileSource | None:
    """Return the files of the gateway at `address` if they hold log `log` and this process can read them, else None.

    The process keeps the files open until their gateway stops, and retries a failure after `limits.LOCAL_FILES_RETRY_US`.
    `status_of` returns a gateway's status.
    """
    files, until = _known.get((os.getpid(), address, log), (None, 0.0))
    if time.monotonic() < until:
        return None
    try:
        # Check the directory again if its gateway has stopped, because a forced roster may have removed this gateway.
        if files is None or not files.written_by():
            files = _open((status_of or _status)(address), log)
            _cache(address, log, files, 0.0)
    except (TuttiError, OSError) as error:
        _cache_failure(address, log, f"not reading the files of gateway {address} directly: {error}")
        return None
    return files


def _cache(address: Address, log: str, files: FileSource | None, until: float) -> None:
    """Cache a gateway's files, or the time of the next attempt after a failure; drop the oldest entry of a full cache."""
    key = os.getpid(), address, log
    _known.pop(key, None)
    while len(_known) >= limits.SPARK_DIRECTORIES_MAX:
        _known.pop(next(iter(_known)))
    _known[key] = files, until


def _status(address: Address, credentials: Credentials | None = None) -> dict[str, object]:
    with AdminClient([address], limits.ADDRESS_TIMEOUT_US / 1e6, rounds=1, learn=False, credentials=credentials) as client:
        return client.status()


def _open(status: dict[str, object], log: str) -> FileSource:
    """Open the data directory whose path is in a gateway's status.

    Raises:
        TuttiError: the directory does not exist here, belongs to another gateway, or is not readable.
    """
    path, name = str(status.get("data", "")), status.get("gateway")
    if status.get("log") != log:
        raise TuttiError(f"the gateway serves log {status.get('log')}, not log {log}")
    if not os.path.isabs(path):
        raise TuttiError("the gateway's status does not contain the path of its data directory")
    files = FileSource(path)
    if files.written_by() != name or files.frontier().log != log:
        files.close()
        raise TuttiError(f"no process visible on this host writes {path} as gateway {name}")
    return files


def _cache_failure(address: Address, log: str, reason: str) -> None:
    LOG.warning(reason)
    _cache(address, log, None, time.monotonic() + limits.LOCAL_FILES_RETRY_US / 1e6)
