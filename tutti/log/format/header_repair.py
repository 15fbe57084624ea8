"""Repairs corrupt segment headers.

Each field of a segment header can be derived from other data, so a rebuilt header loses nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from tutti.data.frames.bodies import RosterBody, decode_body
from tutti.data.frames.frame import Kind, check_payload
from tutti.errors import Damaged, FormatError
from tutti.log.files.layout import FRAMES_AT, SegmentHeader, list_positions, read_header, segment_path
from tutti.log.files.storage import Storage
from tutti.log.format.frame_iterator import FrameScan, SegmentMap, scan_frames
from tutti.log.format.snapshot import Snapshot, newest_snapshot, read_snapshot


class _End(NamedTuple):
    """End of a segment: the position after the last frame, and the chain value of that frame. Position 0 means unknown."""

    position: int
    chain: int


_UNKNOWN = _End(0, 0)


def rebuilt_headers(directory: str, log: bytes) -> list[SegmentHeader]:
    """Return the rebuilt headers of segments with a corrupt header.

    - The first position comes from the file name. The first frame must have the same position.
    - The chain value comes from the frame before the segment, or from the snapshot at the start of the log. The first frame must
      continue the chain.
    - The log uuid is `log`, from the directory. At least one valid header or ROSTER frame must exist, and each must contain `log`.
    - The size is the size of the file.
    """
    firsts = list_positions(directory, "seg")
    headers = {first: _header(directory, first) for first in firsts}
    if all(headers.values()):
        return []
    logs = {header.log for header in headers.values() if header is not None}
    made: list[SegmentHeader] = []
    # The chain value of the first segment comes from the snapshot at the start of the log, because no frame precedes it.
    begin = newest_snapshot(directory, firsts[0] - 1, starts_only=True).state
    end = _End(begin.position + 1, begin.chain)
    for first in firsts:
        header = headers[first]
        chain = header.chain if header is not None else end.chain
        found = _walk(directory, first, chain) if header is not None or end.position == first else None
        end = _UNKNOWN
        # Only a first frame that continues the chain proves a rebuilt header, so the header of an empty segment is not rebuilt.
        if found is not None and found.file_positions:
            end = _End(found.position, found.chain)
            logs |= _rosters(found)
            if header is None:
                made.append(SegmentHeader(log, first, chain, found.segment.size))
    # If one file belongs to a different log, no header is rebuilt, because the corrupt files may belong to that log, too.
    return made if logs == {log} else []


def repair_headers(directory: str, storage: Storage, firsts: Sequence[int], base: Snapshot, log: bytes) -> None:
    """Rewrite corrupt segment headers, up to the first segment for which the chain value is unknown.

    Args:
        firsts: first positions of the segments, starting with the snapshot's segment.
        base: snapshot from which recovery scans the log.
        log: uuid of the log.

    Raises:
        OSError: the write failed.
    """
    if all(_header(directory, first) for first in firsts):
        return
    position, chain, file_position = base.position, base.state.chain, base.file_position
    for first in firsts:
        if _header(directory, first) is None:
            before = read_snapshot(directory, first)
            # The chain value comes from the scan of earlier segments, else from the segment's snapshot. At position 1, it is 0.
            known = chain if first == position else before.state.chain if before is not None else 0 if first == 1 else None
            if known is None:
                return
            _write(directory, storage, first, known, log)
        found = scan_frames(SegmentMap(segment_path(directory, first), first), file_position, position, chain, bodies_from=None)
        position, chain, file_position = found.position, found.chain, FRAMES_AT


def _write(directory: str, storage: Storage, first: int, chain: int, log: bytes) -> None:
    fd = storage.open(segment_path(directory, first))
    try:
        # The old header needs no copy, because after a torn write the CRC is wrong again, and the next start repeats the repair.
        storage.write(fd, [SegmentHeader(log, first, chain, storage.size(fd)).to_bytes()], 0)
        storage.make_durable(fd)
    finally:
        storage.close(fd)


def _header(directory: str, first: int) -> SegmentHeader | None:
    try:
        return read_header(directory, first)
    except (Damaged, OSError):
        return None


def _walk(directory: str, first: int, chain: int) -> FrameScan | None:
    try:
        return scan_frames(SegmentMap(segment_path(directory, first), first), FRAMES_AT, first, chain, bodies_from=None)
    except Damaged:
        return None


def _rosters(found: FrameScan) -> set[bytes]:
    """Return the set of log uuids in the ROSTER frames of a segment."""
    logs = set()
    headers = found.headers()
    for position in headers["position"][headers["kind"] == Kind.ROSTER].tolist():
        frame = found.frame(position)
        try:
            check_payload(frame)
            logs.add(decode_body(RosterBody, frame.body).log)
        except FormatError:
            continue  # a corrupt body does not show the log's uuid; later checks of the frame report the corruption
    return logs
