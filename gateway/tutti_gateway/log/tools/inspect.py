"""Lists the frames of a log with their positions, offsets and file positions."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass

import msgspec

from tutti.data.frames.bodies import (
    AbortBody,
    EpochBody,
    ForgetBody,
    OffsetsBody,
    RosterBody,
    TickBody,
    TopicBody,
    TrimBody,
    TxnBody,
    ViewBody,
    decode_body,
)
from tutti.data.frames.frame import Flag, Frame, Kind
from tutti.data.view_id import view_text
from tutti.errors import FormatError
from tutti.log.files.layout import FRAMES_AT, list_positions, read_header, segment_path
from tutti.log.format.frame_iterator import FrameScan, SegmentMap, scan_frames
from tutti.log.format.index import ABORTED, STAGED
from tutti.log.read.reader import LogReader

_DECODE: dict[int, Callable[[Frame], msgspec.Struct]] = {
    Kind.VIEW: lambda frame: decode_body(ViewBody, frame.body),
    Kind.ROSTER: lambda frame: decode_body(RosterBody, frame.body),
    Kind.EPOCH: lambda frame: decode_body(EpochBody, frame.body),
    Kind.TOPIC: lambda frame: decode_body(TopicBody, frame.body),
    Kind.FORGET: lambda frame: decode_body(ForgetBody, frame.body),
    Kind.ABORT: lambda frame: decode_body(AbortBody, frame.body),
    Kind.TICK: lambda frame: decode_body(TickBody, frame.body),
    Kind.TRIM: lambda frame: decode_body(TrimBody, frame.body),
    Kind.OFFSETS: lambda frame: decode_body(OffsetsBody, frame.body),
    Kind.TXN: lambda frame: decode_body(TxnBody, frame.body),
}
_NO_LIMIT = 1 << 63


@dataclass(frozen=True, slots=True)
class FrameInfo:
    """A description of one frame.

    Attributes:
        position, view, kind: position in the log, view as counter.coordinator, and kind of frame.
        offset: offset of its first record, or of the next record if it has none; -1 while it is undecided.
        fate: "decided", "aborted" (a void batch), "staged" (visible at its TXN, or not yet) or "pending".
        origin, producer, topic: numbers; 0 for none.
        epoch, first_sequence, count: as in the header of a batch.
        min_timestamp, max_timestamp: us, UTC.
        size, body: bytes of the frame in the log, and of its body.
        codec: "lz4", "zstd" or empty.
        progress: opaque bytes of the producer.
        file, byte: path of the segment, and file position of the frame.
        detail: the body as JSON, if the frame is not a batch.
    """

    position: int
    view: str
    kind: str
    offset: int
    fate: str
    origin: int
    producer: int
    epoch: int
    first_sequence: int
    count: int
    topic: int
    min_timestamp: int
    max_timestamp: int
    size: int
    body: int
    codec: str
    progress: bytes
    file: str
    byte: int
    detail: str


def inspect(path: str | os.PathLike[str], start: int = 1, end: int | None = None) -> Iterator[FrameInfo]:
    """Yield a description of each valid frame at positions `start` to `end`, decided or pending.

    Args:
        path: data directory, or directory of a lane.
        start: first position.
        end: last position, included, or None for the last frame.

    Raises:
        WrongDirectory: the path is not a data directory.
        Damaged: a decided frame is corrupt; the frames before it are yielded first.
    """
    with closing(LogReader(path)) as reader:
        last = _NO_LIMIT if end is None else end
        frontier = reader.frontier().position
        for view, rows in reader.positions(max(start, reader.first), min(last, frontier)):
            for row in rows:
                flags = int(row["flags"])
                fate = "aborted" if flags & ABORTED else "staged" if flags & STAGED else "decided"
                yield _frame_info(view.frame(row), int(row["offset"]), fate, view.path, int(row["file_position"]))
        if last > frontier:
            # Undecided frames have no index rows, so the segments are scanned.
            for found in _pending(reader, frontier, last):
                for index, file_position in enumerate(found.file_positions):
                    if found.first + index >= start:
                        yield _frame_info(found.frame(found.first + index), -1, "pending", found.segment.path, file_position)


def _pending(reader: LogReader, frontier: int, last: int) -> Iterator[FrameScan]:
    """Yield the scans of the pending frames after the frontier, one for each segment."""
    segment, file_position, chain = None, FRAMES_AT, 0
    # A log without decided frames has no row here, so the scan below begins at its first segment.
    for view, rows in reader.positions(max(frontier, reader.first), frontier):
        segment, file_position = view.segment, int(rows["file_position"][-1]) + int(rows["size"][-1])
        chain = segment.frame(int(rows["file_position"][-1])).header_crc
    position = frontier + 1
    if segment is not None:
        found = scan_frames(segment, file_position, position, chain, last=last)
        yield found
        position = found.position
    # Later segments hold only undecided frames.
    for first in list_positions(reader.path, "seg"):
        if first == position:
            found = scan_frames(
                SegmentMap(segment_path(reader.path, first), first),
                FRAMES_AT,
                first,
                read_header(reader.path, first).chain,
                last=last,
            )
            yield found
            position = found.position


def _frame_info(frame: Frame, offset: int, fate: str, file: str, file_position: int) -> FrameInfo:
    return FrameInfo(
        position=frame.position,
        view=view_text(frame.view),
        kind=Kind(frame.kind).name,
        offset=offset,
        fate=fate,
        origin=frame.origin,
        producer=frame.producer,
        epoch=frame.epoch,
        first_sequence=frame.first_sequence,
        count=frame.count,
        topic=frame.topic,
        min_timestamp=frame.min_timestamp,
        max_timestamp=frame.max_timestamp,
        size=frame.size,
        body=frame.body_length,
        codec={int(Flag.LZ4): "lz4", int(Flag.ZSTD): "zstd"}.get(frame.codec, ""),
        progress=frame.progress,
        file=file,
        byte=file_position,
        detail=_detail(frame),
    )


def _detail(frame: Frame) -> str:
    """Return the body of a frame as JSON, with bytes as base64; empty for a batch."""
    if frame.kind == Kind.BATCH:
        return ""
    try:
        body = _DECODE[frame.kind](frame)
    except FormatError as error:
        return f"corrupt: {error}"
    fields = {name: getattr(body, name) for name in body.__struct_fields__}
    return msgspec.json.encode(fields).decode()
