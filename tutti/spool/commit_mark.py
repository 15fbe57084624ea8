"""What the log says of a spool, and what follows from it: which of its records are committed. No I/O.

Every batch that leaves a spool has as progress a *mark*: the spool's id, and the place behind the batch. It commits with the batch
or not at all, so the log's last progress of the producer names the last batch of the spool that is committed, exactly.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from typing import NamedTuple

import msgspec

from tutti.batching.receipt import Place
from tutti.data.frames.frame import PROGRESS_BYTES_MAX, crc32c
from tutti.errors import Damaged, FormatError, Refused

FORMAT = 1
_MAGIC = b"\x00TSP"
_MARK = struct.Struct("<4s16sQQ")
#: What an application's own progress may have where there is a spool.
PROGRESS_ROOM = PROGRESS_BYTES_MAX - _MARK.size
START = Place(0, 0)


class Mark(NamedTuple):
    """Which spool a batch came from, and the place behind it."""

    spool: bytes
    place: Place


def wrap(spool: bytes, place: Place, progress: bytes) -> bytes:
    """The progress that a batch travels with; `progress` is the application's own."""
    return _MARK.pack(_MAGIC, spool, *place) + progress


def unwrap(progress: bytes) -> tuple[Mark | None, bytes]:
    """The mark of a progress, if it has one, and the application's part."""
    if len(progress) < _MARK.size or progress[: len(_MAGIC)] != _MAGIC:
        return None, progress
    _, spool, segment, records = _MARK.unpack_from(progress)
    return Mark(spool, Place(segment, records)), progress[_MARK.size :]


class Word(msgspec.Struct, frozen=True):
    """What the log says when an epoch begins: the producer's number, its last committed sequence, and the last progress."""

    number: int = 0
    sequence: int = 0
    progress: bytes = b""


class State(msgspec.Struct, frozen=True):
    """What a spool says of itself, in its file `spool.json`.

    Attributes:
        id: 16 random bytes.
        producer: whose it is.
        log: uuid (hex) of the log that its records went to; empty until one left.
        first: the segments below this number are done with.
        known: the furthest place up to which the log is known to hold it.
        done: what lies before this place is committed, or was put aside.
        aside: places behind which batches stand that were put aside, as far as they are not before `done`.
        sent: records of segments above this number have never left.
        since: what the log said before the first record of segment `sent` left.
        format: of the directory.
    """

    id: bytes
    producer: str
    log: str = ""
    first: int = 1
    known: Place = START
    done: Place = START
    aside: tuple[Place, ...] = ()
    sent: int = 0
    since: Word = Word()
    format: int = FORMAT


def encode_state(state: State) -> bytes:
    """The file: a line of JSON, and its CRC."""
    data = msgspec.json.encode(state)
    return b"%s\n%08x\n" % (data, crc32c(data))


def decode_state(data: bytes) -> State:
    """What `encode_state` made.

    Raises:
        Damaged: it fails its CRC.
        FormatError: it is of a newer release.
    """
    line, _, crc = data.partition(b"\n")
    if crc != b"%08x\n" % crc32c(line):
        raise Damaged("spool.json fails its CRC")
    try:
        form = msgspec.json.decode(line).get("format")
        if form != FORMAT:
            raise FormatError(f"format {form} of a spool is not known, this release reads {FORMAT}: use a newer release")
        return msgspec.json.decode(line, type=State)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError, AttributeError) as error:
        raise Damaged(f"spool.json is not what a spool writes: {error}") from error


def judge(state: State, word: Word, counts: Mapping[int, int]) -> Place:
    """The place up to which the log is known to hold what the spool holds; `counts` are the records of its segments.

    Raises:
        Refused: the log and the spool do not belong together, or it cannot be known what is committed. The message says why.
    """
    mark, _ = unwrap(word.progress)
    if mark is not None and mark.spool == state.id:
        last = max(counts, default=state.first - 1)
        if mark.place < state.known:
            raise Refused(
                f"the log ends at {_told(mark.place)} of this spool, of which more was committed before, up to "
                f"{_told(state.known)}: it is an older copy of the log, or it lost committed records",
                "spool",
            )
        if mark.place.segment > last or mark.place.records > counts.get(mark.place.segment, mark.place.records):
            raise Refused(
                f"the log holds more of this spool than the spool itself, up to {_told(mark.place)}: the directory is an older "
                "copy, or lost its end; move it away and begin with a new one",
                "spool",
            )
        return mark.place
    doubtful = any(
        number <= state.sent and Place(number, count) > max(state.done, Place(number, 0)) for number, count in counts.items()
    )
    if doubtful and word != state.since:
        raise Refused(
            f"producer {state.producer!r} was forgotten, or something else wrote under its name, since records of this spool left: "
            "which of them are committed cannot be known. Look into the log, send again what is missing, and begin with a new "
            "directory; `tutti spool DIR --records` shows what this one holds",
            "spool",
        )
    return state.known


def reach(done: Place, aside: Mapping[Place, Place], counts: Mapping[int, int]) -> Place:
    """How far all is done with, if it is up to `done`: over what is aside (from where to where) and follows without a gap."""
    while True:
        begin = done
        if begin.records >= counts.get(begin.segment, 0):
            begin = min((Place(number, 0) for number in counts if number > begin.segment), default=begin)
        after = aside.get(done) or aside.get(begin)
        if after is None:
            return done
        done = after


def _told(place: Place) -> str:
    return f"record {place.records} of segment {place.segment}"
