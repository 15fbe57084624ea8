"""Cursor: reads a spool back in order, over all of its segments."""

from __future__ import annotations

from collections.abc import Mapping

from tutti.batching.receipt import SpoolPosition
from tutti.errors import Damaged, FormatError
from tutti.log.files.storage import Storage
from tutti.spool.block_format import Block, BlockIterator, seed_of

#: Remedy for an unreadable spool.
REMEDY = "`tutti spool DIR --records` lists the readable records: send them again, and start with a new directory"


class Segment:
    """A segment file. The attributes `end` and `records` are its valid length in bytes and in records."""

    __slots__ = ("end", "number", "path", "records")

    def __init__(self, number: int, path: str, end: int, records: int) -> None:
        self.number, self.path, self.end, self.records = number, path, end, records

    @property
    def last(self) -> SpoolPosition:
        """The position after the segment's last record."""
        return SpoolPosition(self.number, self.records)


class Cursor:
    """Read position in a store.

    Attributes:
        position: position after the last processed block.
    """

    def __init__(self, segments: Mapping[int, Segment], spool: bytes, storage: Storage, position: SpoolPosition) -> None:
        """Create a cursor at `position`. The store may change `segments` while the cursor uses it."""
        self.position = position
        self._segments, self._id, self._storage = segments, spool, storage
        self._walk: BlockIterator | None = None
        self._next: Block | None = None  # the block that `next` returned, until `advance`
        self._fd = -1

    def skip(self, before: SpoolPosition, position: SpoolPosition, end: int) -> bool:
        """See `SpoolStore.skip`."""
        segment = self._segment()
        # Refuse the skip if the cursor lags: earlier blocks must be read before this block.
        if segment is None or self.position != before or segment.number != position.segment:
            return False
        if self._walk is None:
            self._open(segment)
        self.position = position
        if self._walk is not None:
            self._walk.go(end, position.records)
        return True

    def next(self) -> Block | None:
        """See `SpoolStore.next_block`."""
        if self._next is None:
            segment = self._segment()
            self._next = self._read(segment) if segment is not None and self.position < segment.last else None
        return self._next

    def advance(self) -> None:
        """See `SpoolStore.advance`."""
        if self._next is not None:
            self.position, self._next = self._next.position, None

    def _segment(self) -> Segment | None:
        """Return the segment of the position; if the cursor has read all of it, or it is deleted, move to the next segment."""
        segments = self._segments
        while True:
            there = segments.get(self.position.segment)
            # Look the segment up each time, because `prune` may have deleted it, and a write may have extended it.
            if there is not None and self.position.records < there.records:
                return there
            later = min((number for number in segments if number > self.position.segment), default=None)
            if later is None:
                return there
            self._move(later)

    def _move(self, number: int) -> None:
        self.close()
        self.position = SpoolPosition(number, 0)

    def _open(self, segment: Segment) -> None:
        storage = self._storage
        self._fd = fd = storage.open(segment.path)
        seed = seed_of(self._id, segment.number)
        self._walk = BlockIterator(lambda size, at: storage.read(fd, size, at), segment.number, seed)

    def _read(self, segment: Segment) -> Block:
        """Return the block after the position, which must exist in the segment.

        Raises:
            Damaged: the block cannot be read.
        """
        try:
            if self._walk is None:
                self._open(segment)
            walk = self._walk
            while walk is not None and (block := walk.next(segment.end)) is not None:
                # A segment has no index, so after a seek, read from its head and skip the blocks before the position.
                if block.position > self.position:
                    return block
        except (FormatError, OSError) as error:
            reason = error.strerror if isinstance(error, OSError) else error
            at = self._walk.at if self._walk is not None else 0
            raise Damaged(f"{segment.path} cannot be read after byte {at}: {reason}; {REMEDY}") from error
        at = walk.at if walk is not None else 0
        raise Damaged(f"{segment.path} ends at byte {at}, but had {segment.end} bytes; {REMEDY}")

    def close(self) -> None:
        """Close the file."""
        if self._fd >= 0:
            self._storage.close(self._fd)
        self._fd, self._walk = -1, None
