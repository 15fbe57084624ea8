"""Read access to one segment: its frames, and the trusted rows of its index.

A reader trusts the rows of a sealed index after one check of the CRC over all rows. In an unsealed index, a reader trusts the rows
that the live page covers, after one check of each row's CRC.
"""

from __future__ import annotations

import errno
from typing import NamedTuple

import numpy as np

from tutti.data.frames.frame import Frame, check_payload
from tutti.errors import Damaged
from tutti.log.files.layout import FRAMES_AT, index_path, read_header, segment_path
from tutti.log.files.storage import read_file
from tutti.log.format.frame_iterator import Abort, FrameScan, SegmentMap, scan_frames
from tutti.log.format.index import ROWS_AT, Rows, Sealed, index_sealed, map_rows, no_rows, read_sealed, rows_valid
from tutti.log.format.snapshot import newest_snapshot, rows_before


class ReadLimit(NamedTuple):
    """Positions up to which a reader may read frames and index rows.

    Attributes:
        position: last decided position.
        indexed: last position whose index row is written, according to the live page; 0 if unknown.
    """

    position: int
    indexed: int


class SegmentView:
    """Maps one segment and its index, and returns frames and trusted rows."""

    def __init__(self, directory: str, first: int) -> None:
        """Map the segment. The index is mapped when its rows are first requested."""
        self.directory = directory
        self.first = first
        self.path = segment_path(directory, first)
        self.segment = SegmentMap(self.path, first)
        self._index = index_path(directory, first)
        self._sealed: Rows | None = None
        self._corrupt = False
        self._mapped = no_rows()
        self._checked = 0
        self._snapshot_rows: Rows | None = None
        self._scanned: FrameScan | None = None
        self._rebuilt: tuple[int, int, Rows] | None = None

    def trusted_rows(self, last: int, upto: ReadLimit) -> Rows:
        """Return the trusted rows up to position `last`. The caller must rebuild rows that the result lacks from frames."""
        count = last - self.first + 1
        if self._sealed is None and not self._corrupt:
            self._load_sealed()
        if self._sealed is not None:
            return self._sealed[:count]
        # Rows up to the indexed position are complete, because the gateway publishes this position only after it has written them.
        covered = 0 if self._corrupt else min(last, upto.indexed) - self.first + 1
        if covered > len(self._mapped):
            # The file is mapped again, because it has grown after the last mapping.
            found = map_rows(self._index)
            self._mapped = found[1] if found is not None else no_rows()
        if 0 < covered <= len(self._mapped) and self._check_rows(covered):
            return self._mapped[:covered]
        if self._snapshot_rows is None:
            # Without a live page, the reader trusts only the rows before a snapshot, because the snapshot contains their CRC.
            snapshot = newest_snapshot(self.directory, upto.position)
            prefix = rows_before(self.directory, snapshot) if snapshot.segment == self.first else None
            self._snapshot_rows = no_rows() if prefix is None else prefix
        return self._snapshot_rows[:count]

    def _check_rows(self, covered: int) -> bool:
        """True if the first `covered` rows match their CRCs. Each row is checked only once."""
        if covered > self._checked:
            new = self._mapped[self._checked : covered]
            self._corrupt = new["position"][-1] != self.first + covered - 1 or not rows_valid(new)
            self._checked = 0 if self._corrupt else covered
        return not self._corrupt

    def _load_sealed(self) -> None:
        header = sealed_header(self.directory, self.first)
        if header is None:
            return
        mapped = map_rows(self._index)
        # `index_sealed` checks the CRC over all rows, once for each view.
        if mapped is not None and index_sealed(self._index, self.first) is not None:
            self._sealed = mapped[1][: header.rows]
        else:
            self._corrupt = True  # no row of a sealed but corrupt index is trusted

    def scan(self, rows: Rows, last: int) -> FrameScan:
        """Scan the frames up to position `last`, from the first frame that has no row in `rows`, the first rows of this segment."""
        position = self.first + len(rows)
        # The last scan is cached, because each read of a segment without an index needs the same scan.
        found = self._scanned
        if found is not None and found.first == position and found.position == last + 1:
            return found
        if len(rows):
            before = int(rows["file_position"][-1])
            file_position, chain = before + int(rows["size"][-1]), self.segment.frame(before).header_crc
        else:
            file_position, chain = FRAMES_AT, read_header(self.directory, self.first).chain
        # This scan skips the bodies of batches, because rows need only headers, and a read of records checks each body anyway.
        self._scanned = found = scan_frames(self.segment, file_position, position, chain, last=last, bodies_from=last + 1)
        return found

    def rebuild_rows(self, walked: FrameScan, aborts: list[Abort], offset: int, tick: int) -> Rows:
        """Rebuild the index rows of scanned frames.

        Args:
            offset: offset of the first record in the scanned frames.
            tick: number of the last tick before the scanned frames.
        """
        # The last result is cached, because each read of a segment without an index needs the same rows.
        if self._rebuilt is not None and self._rebuilt[:2] == (walked.first, walked.position):
            return self._rebuilt[2]
        headers = walked.headers()
        rows = walked.rows(headers, aborts, offset, tick)
        self._rebuilt = (walked.first, walked.position, rows)
        return rows

    def frame(self, row: np.void) -> Frame:
        """Return the frame that an index row describes, after a check of the payload. The body is a view of the segment.

        Raises:
            Damaged: the frame has another position than the row, or the payload fails its CRC.
        """
        file_position, position = int(row["file_position"]), int(row["position"])
        try:
            self.segment.prefetch(file_position, file_position + int(row["size"]))
            self.segment.populate(file_position, file_position + int(row["size"]))
            frame = self.segment.frame(file_position)
            if frame.position != position:
                raise Damaged(f"{self.path} holds position {frame.position} at byte {file_position} instead of position {position}")
            check_payload(frame, f"{self.path} at byte {file_position}")
        except Damaged as error:
            error.position = position
            raise
        return frame


def sealed_header(directory: str, first: int) -> Sealed | None:
    """Return the header of a segment's index if the index is sealed, else None. The rows are not checked."""
    try:
        return read_sealed(read_file(index_path(directory, first), ROWS_AT), first)
    except OSError as error:
        if error.errno not in (errno.ENOENT, errno.EIO):
            raise
        return None  # a missing or unreadable index is no error, because the caller can rebuild the rows from the frames


def segment_too_short(view: SegmentView, walked: FrameScan) -> Damaged:
    """Return the error for a segment whose valid frames end before the frontier."""
    return Damaged(
        f"{view.path} has {walked.stop.value} at byte {walked.file_position}, instead of position {walked.position}: "
        f"see `tutti log verify {view.directory}`",
        walked.position,
    )
