"""Test vectors of what travels and what is stored: `python -m tools.vectors` writes docs/vectors, a test compares them.

Each vector is bytes as this release writes them, and what they say, so that a client in another language can hold its own code
against them (docs/reference/wire.md and formats.md; examples/other-language does). `{"hex": "..."}` stands for bytes.
"""

from __future__ import annotations

import json
import struct
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec

from tutti.data import client_protocol
from tutti.data.frames import bodies
from tutti.data.frames.frame import HEADER_DTYPE, Frame, Kind, crc32c, progress_length_at
from tutti.data.frames.plain_body import encode_plain
from tutti.log.files.layout import FRAMES_AT, SEGMENT_HEADER_SIZE, SegmentHeader
from tutti.log.format.index import ROW, encode_row
from tutti.log.format.vote_mark import VoteMark
from tutti.zmtp.framing import COMMAND, GREETING, LONG, MORE, PING, frame, pong, ready

DOCS = Path(__file__).resolve().parents[1] / "docs/reference/vectors"
VIEW = 3 << 16 | 1
LOG = bytes(range(16))
BEFORE = 0x12345678  # the chain before the first frame of the example
TIME_US = 1_700_000_000_000_000

Vector = dict[str, Any]


def _vector(name: str, kind: str, data: bytes | Sequence[bytes], says: Any) -> Vector:
    given = data.hex() if isinstance(data, bytes) else [part.hex() for part in data]
    return {"name": name, "kind": kind, "bytes": given, "says": _plain(says)}


def _plain(value: Any) -> Any:
    """A value as JSON, bytes as hex."""
    if isinstance(value, bytes | bytearray | memoryview):
        return {"hex": bytes(value).hex()}
    if isinstance(value, msgspec.Struct):
        return {"type": value.__struct_config__.tag, **{name: _plain(getattr(value, name)) for name in value.__struct_fields__}}
    if isinstance(value, dict):
        return {name: _plain(found) for name, found in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(found) for found in value]
    return value


# -- the client port

_RECORDS: list[tuple[bytes | None, bytes | None, int]] = [
    (b"JFK", b"AA 100 to LHR", TIME_US),
    (None, b"", TIME_US + 1),
    (b"LGA", None, TIME_US - 1),
]
_CONTROL: list[msgspec.Struct] = [
    client_protocol.Hello(1, "tutti-example", bytes(range(16))),
    client_protocol.Welcome(
        *(1, "jfk", "ingest", LOG.hex(), "primary", "0.1.0", "127.0.0.1:7402", "127.0.0.1:7403"),
        gateways={"jfk": "tutti://127.0.0.1:7400", "lga": "tutti://127.0.0.1:7410"},
        window_bytes=16 << 20,
        frame_bytes_max=8 << 20,
        raw_bytes_max=32 << 20,
        silent=("lga",),
    ),
    client_protocol.OpenProducer(1, "jfk-departures", bytes(range(16, 32)), 1),
    client_protocol.EpochOpened(1, 7, 1, 0, b""),
    client_protocol.EpochOpened(1, 7, 3, 1017, b"place 1017"),
    client_protocol.EpochFenced(1, 4),
    client_protocol.OpenTopic(2, "flights"),
    client_protocol.TopicOpened(2, 5),
    client_protocol.SaveOffset(3, "loader", 70_000, back=True),
    client_protocol.Done(3),
    client_protocol.Denied(4, "name", "topic 'a b' is not taken", retry=False),
    client_protocol.Status(5),
    client_protocol.AbortedAnswer(7, 1, 1, 3, "jfk has no room"),
    client_protocol.FencedAnswer(7, 2, 0),
    client_protocol.Expected(7, 1, 4),
    client_protocol.RefusedAnswer(7, 1, 1, "space", "the disk is nearly full", retry=True),
    client_protocol.Bye(),
]


def _batch(records: Sequence[tuple[bytes | None, bytes | None, int]], sequence: int, progress: bytes = b"") -> Frame:
    keys, values, times = zip(*records, strict=True)
    body, raw = encode_plain(None if not any(keys) else keys, values, struct.pack(f"<{len(times)}q", *times))
    return Frame(
        Kind.BATCH,
        body,
        progress=progress,
        producer=7,
        epoch=1,
        first_sequence=sequence,
        count=len(records),
        topic=5,
        min_timestamp=min(times),
        max_timestamp=max(times),
        raw_length=raw,
    )


def _said(found: Frame) -> Vector:
    """What a header says, in its order, and what stands behind it."""
    names = [
        name for name in HEADER_DTYPE.names or () if name not in ("magic", "version", "zero", "progress_length", "body_length")
    ]
    return {**{name: int(getattr(found, name)) for name in names}, "progress": found.progress, "body": bytes(found.body)}


def _rows(records: Sequence[tuple[bytes | None, bytes | None, int]]) -> list[Vector]:
    return [{"key": key, "value": value, "timestamp": time} for key, value, time in records]


def wire_vectors() -> Iterator[Vector]:
    """What goes over a connection of the client port."""
    for text in (b"", b"123456789", bytes(96)):
        yield _vector(f"CRC32C of {len(text)} bytes", "crc32c", text, crc32c(text))
    yield _vector("greeting", "zmtp", GREETING, {"greeting": "NULL"})
    yield _vector("READY of a client", "zmtp", ready(b"DEALER", b""), {"flags": COMMAND, "data": ready(b"DEALER", b"")[2:]})
    yield _vector("a part, and another follows", "zmtp", frame(b"part", MORE), {"flags": MORE, "data": b"part"})
    yield _vector("a part of 256 bytes", "zmtp", frame(bytes(256)), {"flags": LONG, "data": bytes(256)})
    yield _vector("PING", "zmtp", PING, {"flags": COMMAND, "data": PING[2:]})
    yield _vector("PONG", "zmtp", pong(PING[2:]), {"flags": COMMAND, "data": pong(PING[2:])[2:]})
    for message in _CONTROL:
        yield _vector(type(message).__name__, "control", client_protocol.encode_control(message), message)
    batch = _batch(_RECORDS, 1, b"place 3")
    yield _vector("three records", "body", bytes(batch.body), {"records": _rows(_RECORDS), "raw_length": batch.raw_length})
    alone = [(None, b"x" * 9000, TIME_US)]
    yield _vector("a batch to be submitted", "frame", batch.to_bytes(), _said(batch))
    more = _batch(_RECORDS[:1], 4)
    for name, frames in (("small batches", [batch, more]), ("a body of more than 8192 bytes", [_batch(alone, 5)])):
        yield _vector(
            name, "submit", [bytes(part) for part in client_protocol.encode_submit(frames)], [_said(found) for found in frames]
        )
    answers = [client_protocol.Committed(7, 1, 1, 3, 42), client_protocol.Committed(7, 1, 4, 1, client_protocol.OFFSET_UNKNOWN)]
    rows = [msgspec.structs.asdict(answer) for answer in answers]
    yield _vector("receipts", "receipts", client_protocol.encode_receipts(answers), rows)


# -- files


def _run() -> Iterator[Frame]:
    """Frames as they stand in a log: a topic, a producer, records, a tick."""
    yield Frame(Kind.TOPIC, bodies.encode_body(bodies.TopicBody("flights")), topic=5, origin=1)
    yield Frame(
        Kind.EPOCH, bodies.encode_body(bodies.EpochBody("jfk-departures", bytes(16), 0, b"")), producer=7, epoch=1, origin=1
    )
    found = _batch(_RECORDS, 1, b"place 3")
    found.origin = 1
    yield found
    yield Frame(Kind.TICK, bodies.encode_body(bodies.TickBody(9, TIME_US + 2)), origin=1)


def log_vectors() -> Iterator[Vector]:
    """What stands in a data directory."""
    header = SegmentHeader(LOG, 101, BEFORE, 128 << 20)
    yield _vector("head of a segment", "segment", header.to_bytes()[:SEGMENT_HEADER_SIZE], {"version": 1, **header._asdict()})
    chain, place, tick = BEFORE, FRAMES_AT, 8
    frames: list[Vector] = []
    rows: list[Vector] = []
    for position, found in enumerate(_run(), start=header.first):
        previous = chain
        found.stamp(VIEW, position, previous)
        chain = found.header_crc
        tick += found.kind == Kind.TICK
        name = Kind(found.kind).name
        frames.append(_vector(f"{name} at byte {place}", "frame", found.to_bytes(), {**_said(found), "previous_crc": previous}))
        row = encode_row(found, place, 42 if found.kind != Kind.TICK else 45, (tick, TIME_US + 2), aborted=False)
        # The name in the vectors and in docs/reference/formats.md is older than the one in the code.
        names = ["place" if field == "file_position" else field for field in ROW.names or () if field != "crc"]
        said = dict(zip(names, struct.unpack_from("<QQqQQqqQQIIIIBBH", row), strict=True))
        rows.append(_vector(f"row of the {name}", "row", row, said))
        assert progress_length_at(found.packed_header()) == len(found.progress)  # noqa: S101 - of this tool itself
        place += found.size
    yield from frames
    yield from rows
    mark = VoteMark(12, header.first + 3, VIEW, chain, header.first + 2, 45, TIME_US + 3)
    yield _vector("mark", "mark", mark.to_bytes(), mark._asdict())


def pages() -> dict[str, str]:
    """File name -> text."""
    made = {"wire.json": wire_vectors(), "log.json": log_vectors()}
    return {name: json.dumps({"vectors": list(vectors)}, indent=1) + "\n" for name, vectors in made.items()}


def main() -> int:
    """Write the files."""
    DOCS.mkdir(exist_ok=True)
    for name, text in pages().items():
        (DOCS / name).write_text(text)
        sys.stderr.write(f"wrote {DOCS / name}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
