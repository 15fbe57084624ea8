"""Commit marks: determine from the log's last progress which records of a spool are committed. No I/O.

Each batch from a spool has a *mark* as progress: the spool's id, and the position after the batch. Batch and mark commit together
or not at all. So the producer's last progress in the log identifies the last committed batch of the spool.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from typing import NamedTuple

import msgspec

from tutti.batching.receipt import SpoolPosition
from tutti.data.frames.frame import PROGRESS_BYTES_MAX, crc32c
from tutti.errors import Damaged, FormatError, Refused

FORMAT = 1
_MAGIC = b"\x00TSP"
_MARK = struct.Struct("<4s16sQQ")
#: Maximum size in bytes of the application's progress in a producer with a spool, whose mark takes the rest.
APPLICATION_PROGRESS_BYTES_MAX = PROGRESS_BYTES_MAX - _MARK.size
START = SpoolPosition(0, 0)


class Mark(NamedTuple):
    """A mark: the id of a batch's spool, and the position after the batch."""

    spool: bytes
    position: SpoolPosition


def encode_mark(spool: bytes, position: SpoolPosition, progress: bytes) -> bytes:
    """Return the progress for the frame of a batch: the mark, followed by the application's `progress`."""
    return _MARK.pack(_MAGIC, spool, *position) + progress


def decode_mark(progress: bytes) -> tuple[Mark | None, bytes]:
    """Return the mark at the start of a progress (None without a mark), and the application's part."""
    if len(progress) < _MARK.size or progress[: len(_MAGIC)] != _MAGIC:
        return None, progress
    _, spool, segment, records = _MARK.unpack_from(progress)
    return Mark(spool, SpoolPosition(segment, records)), progress[_MARK.size :]


class EpochStart(msgspec.Struct, frozen=True):
    """The log's report at the start of an epoch: the producer's number, last committed sequence and last progress."""

    number: int = 0
    sequence: int = 0
    progress: bytes = b""


class State(msgspec.Struct, frozen=True):
    """The state of a spool, in its file `spool.json`.

    Attributes:
        id: 16 random bytes.
        producer: name of the owner.
        log: uuid (hex) of the log that received records of the spool; empty before the first record was sent.
        first: number of the first segment that is still needed.
        known: position up to which the log is known to hold the spooled records.
        done: position up to which all records are committed or refused.
        aside: start positions of refused batches above `done`.
        sent: number of the highest segment whose records may have been sent.
        since: the log's report at the start of the epoch in which the first record of segment `sent` was sent.
        format: format version of the directory.
    """

    id: bytes
    producer: str
    log: str = ""
    first: int = 1
    known: SpoolPosition = START
    done: SpoolPosition = START
    aside: tuple[SpoolPosition, ...] = ()
    sent: int = 0
    since: EpochStart = EpochStart()
    format: int = FORMAT


def encode_state(state: State) -> bytes:
    """Encode `spool.json`: a line of JSON, and a line with its CRC."""
    data = msgspec.json.encode(state)
    return b"%s\n%08x\n" % (data, crc32c(data))


def decode_state(data: bytes) -> State:
    """Decode the result of `encode_state`.

    Raises:
        Damaged: the CRC does not match.
        FormatError: a newer release wrote the file.
    """
    line, _, crc = data.partition(b"\n")
    if crc != b"%08x\n" % crc32c(line):
        raise Damaged("spool.json fails its CRC")
    try:
        # Check the format first, because a newer release may have changed the type of a field.
        form = msgspec.json.decode(line).get("format")
        if form != FORMAT:
            raise FormatError(f"format {form} of a spool is unknown, and this release reads {FORMAT}: use a newer release")
        return msgspec.json.decode(line, type=State)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError, AttributeError) as error:
        raise Damaged(f"spool.json has invalid content: {error}") from error


def committed_position(state: State, start: EpochStart, counts: Mapping[int, int]) -> SpoolPosition:
    """Return the position up to which the log contains the spooled records. `counts` is the number of records in each segment.

    Raises:
        Refused: the log and the spool do not belong together, or the committed records cannot be determined; the message contains
            the reason.
    """
    mark, _ = decode_mark(start.progress)
    if mark is not None and mark.spool == state.id:
        last = max(counts, default=state.first - 1)
        # The mark is exact, unless the log or the directory is an older copy, which the next two checks detect.
        if mark.position < state.known:
            raise Refused(
                f"the log contains this spool only up to {_text_of(mark.position)}, but had committed it up to "
                f"{_text_of(state.known)}: the log is an older copy, or lost committed records",
                "spool",
            )
        if mark.position.segment > last or mark.position.records > counts.get(mark.position.segment, mark.position.records):
            raise Refused(
                f"the log contains more records than the spool's directory, up to {_text_of(mark.position)}: the directory is an "
                "older copy, or lost its last records. Move the directory away, and start with a new one",
                "spool",
            )
        return mark.position
    # The last progress in the log is not from this spool. If no record of the spool was sent, none can have committed.
    # If records were sent, none has committed if the log's report is the same as before they were sent.
    doubtful = any(
        number <= state.sent and SpoolPosition(number, count) > max(state.done, SpoolPosition(number, 0))
        for number, count in counts.items()
    )
    if doubtful and start != state.since:
        raise Refused(
            f"after records of this spool were sent, the log deleted the state of producer {state.producer!r}, or another program "
            "wrote under its name: the committed records cannot be determined. Read the log, send missing records again, and start "
            "with a new directory; `tutti spool DIR --records` lists the content of this one",
            "spool",
        )
    return state.known


def advance_over_refused(
    done: SpoolPosition, aside: Mapping[SpoolPosition, SpoolPosition], counts: Mapping[int, int]
) -> SpoolPosition:
    """Return the position after `done` and after all refused batches that follow `done` without a gap.

    The mapping `aside` contains the refused batches: start position -> end position.
    """
    while True:
        begin = done
        # After the last record of a segment, the next batch starts at record 0 of a later segment.
        if begin.records >= counts.get(begin.segment, 0):
            begin = min((SpoolPosition(number, 0) for number in counts if number > begin.segment), default=begin)
        after = aside.get(done) or aside.get(begin)
        if after is None:
            return done
        done = after


def _text_of(position: SpoolPosition) -> str:
    return f"record {position.records} of segment {position.segment}"
