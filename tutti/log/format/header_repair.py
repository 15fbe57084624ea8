"""A segment whose header alone is damaged: each fact of it is told elsewhere too, so it can be made again and nothing is lost."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from tutti.data.frames.bodies import RosterBody, decode_body
from tutti.data.frames.frame import Kind, check_payload
from tutti.errors import Damaged, FormatError
from tutti.log.files.layout import FRAMES_AT, SegmentHeader, positions_named, read_header, segment_path
from tutti.log.files.storage import Storage
from tutti.log.format.frame_iterator import SegmentMap, Walk, walk
from tutti.log.format.snapshot import Snapshot, newest_snapshot, read_snapshot


class _End(NamedTuple):
    """Where a segment's frames end: the next position, and the chain value before it. Position 0: it cannot be told."""

    position: int
    chain: int


_UNKNOWN = _End(0, 0)


def lost_headers(directory: str, log: bytes) -> list[SegmentHeader]:
    """The headers of those segments whose own is damaged and follows from the rest:

    - the position of the first frame: the file's name says it, and so must the frame;
    - the chain value before it: it is that of the frame at the position before, or of the snapshot with which the log begins, and
      the first frame goes on from it;
    - the log's uuid: `log`, what the directory knows; every good header and ROSTER must say the same, and one of them at least;
    - the size: the file's.
    """
    firsts = positions_named(directory, "seg")
    headers = {first: _header(directory, first) for first in firsts}
    if all(headers.values()):
        return []
    logs = {header.log for header in headers.values() if header is not None}
    made: list[SegmentHeader] = []
    begin = newest_snapshot(directory, firsts[0] - 1, starts_only=True).state
    end = _End(begin.position + 1, begin.chain)
    for first in firsts:
        header = headers[first]
        chain = header.chain if header is not None else end.chain
        found = _walk(directory, first, chain) if header is not None or end.position == first else None
        end = _UNKNOWN
        if found is not None and found.places:
            end = _End(found.position, found.chain)
            logs |= _rosters(found)
            if header is None:
                made.append(SegmentHeader(log, first, chain, found.segment.size))
    return made if logs == {log} else []


def mend_headers(directory: str, storage: Storage, firsts: Sequence[int], base: Snapshot, log: bytes) -> None:
    """Write bad headers of segments again, as far as the log before them is whole: all that stands in one follows from it.

    Args:
        firsts: of the segments, that of the snapshot first.
        base: where to start.
        log: its uuid.

    Raises:
        OSError: the disk did not take it.
    """
    if all(_header(directory, first) for first in firsts):
        return
    position, chain, place = base.position, base.state.chain, base.place
    for first in firsts:
        if _header(directory, first) is None:
            before = read_snapshot(directory, first)
            known = chain if first == position else before.state.chain if before is not None else 0 if first == 1 else None
            if known is None:
                return
            _write(directory, storage, first, known, log)
        found = walk(SegmentMap(segment_path(directory, first), first), place, position, chain, bodies_from=None)
        position, chain, place = found.position, found.chain, FRAMES_AT


def _write(directory: str, storage: Storage, first: int, chain: int, log: bytes) -> None:
    fd = storage.open(segment_path(directory, first))
    try:
        storage.write(fd, [SegmentHeader(log, first, chain, storage.size(fd)).to_bytes()], 0)
        storage.make_durable(fd)
    finally:
        storage.close(fd)


def _header(directory: str, first: int) -> SegmentHeader | None:
    try:
        return read_header(directory, first)
    except (Damaged, OSError):
        return None


def _walk(directory: str, first: int, chain: int) -> Walk | None:
    try:
        return walk(SegmentMap(segment_path(directory, first), first), FRAMES_AT, first, chain, bodies_from=None)
    except Damaged:
        return None


def _rosters(found: Walk) -> set[bytes]:
    """The logs that the ROSTER frames of a segment name."""
    logs = set()
    headers = found.headers()
    for position in headers["position"][headers["kind"] == Kind.ROSTER].tolist():
        frame = found.frame(position)
        try:
            check_payload(frame)
            logs.add(decode_body(RosterBody, frame.body).log)
        except FormatError:
            continue  # damaged, which is told when the frame is looked at
    return logs
