"""What an archiver asks of a log, asked of gateways: records come from the files of one on this host where they may be read."""

from __future__ import annotations

from collections.abc import Iterator

from tutti.sources.flight import Reads
from tutti.sources.local_files import pieces_nearby
from tutti.sources.locality import is_here
from tutti.sources.source import Frontier, Piece, begun


class LogOfGateways:
    """A log as gateways serve it, for `tutti.archive.archiver`.

    Args:
        url: `tutti://HOST:PORT[,HOST:PORT...]`.

    Raises (all methods):
        Unavailable: no gateway answered in time.
        Refused: one would not do it.
        OffsetOutOfRange: what was asked for is not there any more.
    """

    def __init__(self, url: str) -> None:
        """Nothing is connected yet."""
        self._reads = Reads(url)

    def frontier(self) -> Frontier:
        """How far it is committed, once it has begun."""
        return begun(self._reads)

    def tick_end(self, start: int, limit: int, end: int, every: int) -> int:
        """As `Reads.tick_end`."""
        return self._reads.tick_end(start, limit, end, every)

    def bytes_end(self, start: int, end: int, bytes_max: int) -> int:
        """As `Reads.bytes_end`."""
        return self._reads.bytes_end(start, end, bytes_max)

    def records(self, start: int, end: int) -> Iterator[Piece]:
        """The records [start, end), with all columns."""
        log = self._reads.frontier().log
        return pieces_nearby([one for one in self._reads.addresses if is_here(one.host)], self._reads, log, start, end)

    def readers(self) -> dict[str, int]:
        """What named readers saved."""
        return self._reads.readers()

    def save_offset(self, reader: str, offset: int, back: bool = False) -> None:
        """A named reader's offset commit."""
        self._reads.save_offset(reader, offset, back)

    def close(self) -> None:
        """Nothing is held that others do not share."""
        self._reads.close()
