"""Short-circuit reads: who is on a gateway's own host maps the gateway's files and does not have it send them.

The gateway tells where its directory is as it tells everybody, in its status. That the directory found there is its own, and no
other one at the same path (another container's, a copy), shows in it: log and name are those that the gateway told, and its live
page is written by a process that runs on this machine. What is read is decided, so every directory of the log holds the same: but
for one that its gateway is gone from, which a forced roster may have left behind. So it is looked at again for each range.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Iterable, Iterator, Sequence

from tutti import limits
from tutti.common.address import Address
from tutti.common.credentials import Credentials
from tutti.errors import TuttiError
from tutti.io.admin import Control
from tutti.sources.files import Files
from tutti.sources.source import Piece, Source

LOG = logging.getLogger("tutti.client")

#: Of each gateway and log: its files, None if they cannot be read from here, and until when that is believed (seconds, monotonic).
_known: dict[tuple[int, Address, str], tuple[Files | None, float]] = {}


def pieces_nearby(
    addresses: Iterable[Address],
    source: Source,
    log: str,
    start: int,
    end: int,
    topics: Sequence[str] | None = None,
    columns: Sequence[str] | None = None,
    credentials: Credentials | None = None,
) -> Iterator[Piece]:
    """As `source.pieces` (topics that do not exist have no records), from the files of a gateway while that works.

    Args:
        addresses: gateways of this host; of several the same one is taken each time, so that one copy of the log is in memory.
        source: asked for what no file gives: all of it, or what follows where a file is damaged, gone or no longer to be read.
        log: uuid of the log.
        start, end: a decided range of it.
        topics, columns: as in `Reads.scan`.
        credentials: what a gateway is asked with for where its files are.
    """
    position = start
    for address in sorted(addresses):
        files = files_of(address, log, lambda asked: _status(asked, credentials))
        if files is None:
            continue
        try:
            for piece in files.pieces(position, end, topics, columns, absent_ok=True):
                position = piece.next
                yield piece
            return
        except (TuttiError, OSError) as error:
            _give_up(address, log, f"offset {position} of {', '.join(files.paths)} is read through gateways: {error}")
            break
    yield from source.pieces(position, end, topics, columns, absent_ok=True)


def files_of(address: Address, log: str, ask: Callable[[Address], dict[str, object]] | None = None) -> Files | None:
    """The files of the gateway at `address`, if they hold log `log` and can be read from here. Asked once a process, and again when
    nobody writes them any more; what could not be read is tried again after a while. `ask` gives a gateway's status.
    """
    files, until = _known.get((os.getpid(), address, log), (None, 0.0))
    if time.monotonic() < until:
        return None
    try:
        if files is None or not files.written_by():
            files = _opened((ask or _status)(address), log)
            _keep(address, log, files, 0.0)
    except (TuttiError, OSError) as error:
        _give_up(address, log, f"the files of gateway {address} are not read from here: {error}")
        return None
    return files


def _keep(address: Address, log: str, files: Files | None, until: float) -> None:
    """Know the files of a gateway, or until when none are looked for, as one of some."""
    key = os.getpid(), address, log
    _known.pop(key, None)
    while len(_known) >= limits.SPARK_DIRECTORIES_MAX:
        _known.pop(next(iter(_known)))
    _known[key] = files, until


def _status(address: Address, credentials: Credentials | None = None) -> dict[str, object]:
    with Control([address], limits.ADDRESS_TIMEOUT_US / 1e6, rounds=1, learn=False, credentials=credentials) as control:
        return control.status()


def _opened(told: dict[str, object], log: str) -> Files:
    """The directory that a gateway's status tells of.

    Raises:
        TuttiError: it is not there, not that gateway's, or cannot be read.
    """
    path, name = str(told.get("data", "")), told.get("gateway")
    if told.get("log") != log:
        raise TuttiError(f"it serves log {told.get('log')} and not {log}")
    if not os.path.isabs(path):
        raise TuttiError("it does not say where they are")
    files = Files(path)
    if files.written_by() != name or files.frontier().log != log:
        files.close()
        raise TuttiError(f"what is at {path} here is not written by gateway {name}, in a process that can be seen from here")
    return files


def _give_up(address: Address, log: str, why: str) -> None:
    LOG.warning(why)
    _keep(address, log, None, time.monotonic() + limits.NEARBY_AGAIN_US / 1e6)
