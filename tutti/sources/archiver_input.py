"""The log that an archiver reads, from gateways or from the files of a gateway on the same host."""

from __future__ import annotations

from collections.abc import Iterator

from tutti.data.scan_request import ScanBatch, ScanRequest
from tutti.sources.flight import FlightSource
from tutti.sources.locality import is_local_host
from tutti.sources.short_circuit import scan_local_first
from tutti.sources.source import Frontier, wait_for_log


class GatewayLog:
    """The log that an archiver reads from gateways; implements `tutti.archive.archiver.ArchivedLog`.

    Args:
        url: addresses of the gateways, as `tutti://HOST:PORT[,HOST:PORT...]`.

    Raises (all methods):
        Unavailable: no gateway answered in time.
        Refused: a gateway refused the request.
        OffsetOutOfRange: retention has removed the records.
    """

    def __init__(self, url: str) -> None:
        """Prepare, without a connection."""
        self._reads = FlightSource(url)

    def frontier(self) -> Frontier:
        """Return the frontier of the log; wait for the log to exist."""
        return wait_for_log(self._reads)

    def tick_end(self, start: int, limit: int, end: int, every: int) -> int:
        """As `FlightSource.tick_end`."""
        return self._reads.tick_end(start, limit, end, every)

    def bytes_end(self, start: int, end: int, bytes_max: int) -> int:
        """As `FlightSource.bytes_end`."""
        return self._reads.bytes_end(start, end, bytes_max)

    def records(self, start: int, end: int) -> Iterator[ScanBatch]:
        """Yield the records [start, end) with all columns."""
        log = self._reads.frontier().log
        local = [address for address in self._reads.addresses if is_local_host(address.host)]
        return scan_local_first(local, self._reads, log, ScanRequest(start, end))

    def readers(self) -> dict[str, int]:
        """Return the committed offsets of named readers."""
        return self._reads.readers()

    def save_offset(self, reader: str, offset: int, back: bool = False) -> None:
        """Commit the offset of a named reader; `back` allows an offset below the committed one."""
        self._reads.save_offset(reader, offset, back)

    def close(self) -> None:
        """Release the gateways; their connections stay open, because all readers of the process share them."""
        self._reads.close()
