"""The digest is a function of the records alone, the one that its description says."""

from __future__ import annotations

import hashlib
import struct
from pathlib import Path

import pytest

from tests.unit.log.history import COMPRESSIONS, History, write_log
from tutti.log.files.options import LogOptions
from tutti_gateway.log.tools.digest import digest


def batched(sizes: list[int], compression: int) -> History:
    """The same 9,000 records, cut into batches in another way."""
    history = History()
    history.topic("a")
    history.topic("b")
    history.epoch("p")
    at = number = 0
    while at < 9000:
        # The topic changes at fixed records, so that it is a record's own and not its batch's.
        border = (at // 1500 + 1) * 1500
        until = min(at + sizes[number % len(sizes)], 9000, border)
        records = range(at, until)
        history.batch(
            "p",
            "ab"[at // 1500 % 2],
            [None if i % 13 == 0 else b"value %d" % i for i in records],
            keys=[None if i % 3 else b"key %d" % i for i in records],
            headers=[[("n", b"%d" % i), ("m", None)] if i % 5 == 0 else [] if i % 5 == 1 else None for i in records],
            compression=COMPRESSIONS[compression],
        )
        at, number = until, number + 1
    return history


def canonical(history: History, start: int, end: int) -> str:
    """The digest as its description says, record by record."""
    some = history.records[start:end]
    pairs = [pair for record in some for pair in record.headers or []]
    parts = [b"tutti-digest-1\n" + struct.pack("<QQ", start, len(some))]

    def add(data: bytes) -> None:
        parts.append(hashlib.sha256(data).digest())

    def add_texts(values: list[bytes | None]) -> None:
        lengths = [-1 if value is None else len(value) for value in values]
        add(struct.pack(f"<{len(lengths)}i", *lengths))
        add(b"".join(value for value in values if value is not None))

    add_texts([record.topic.encode() for record in some])
    add_texts([record.key for record in some])
    add_texts([record.value for record in some])
    add(struct.pack(f"<{len(some)}q", *(record.timestamp for record in some)))
    add(struct.pack(f"<{len(some)}i", *(-1 if record.headers is None else len(record.headers) for record in some)))
    add_texts([name.encode() for name, _ in pairs])
    add_texts([value for _, value in pairs])
    return hashlib.sha256(b"".join(parts)).hexdigest()


def test_the_digest_is_a_function_of_the_records_alone(tmp_path: Path) -> None:
    found = set()
    for number, (sizes, compression) in enumerate([([1500], 0), ([7, 130, 1], 1), ([4096], 2), ([999, 2], 0)]):
        history = batched(sizes, compression)
        path = tmp_path / str(number)
        write_log(path, history, LogOptions(segment_bytes=1 << 20, prepared_segments=0, reserved_bytes=0))
        found.add(tuple(digest(path, *bounds).sha256 for bounds in [(None, None), (0, 4096), (17, 8191), (4096, 4097), (5, 5)]))
    assert found == {tuple(canonical(history, *bounds) for bounds in [(0, 9000), (0, 4096), (17, 8191), (4096, 4097), (5, 5)])}
    assert len(set(*found)) == 5


@pytest.mark.parametrize("change", ["value", "topic", "key", "header", "time"])
def test_the_digest_shows_every_change(tmp_path: Path, change: str) -> None:
    found = []
    for number in (0, 1):
        history = History()
        one = bool(number)
        history.clock += 5 if change == "time" and one else 0
        history.batch(
            "p",
            "other" if change == "topic" and one else "topic",
            [b"", b"bc"] if not (change == "value" and one) else [b"b", b"c"],
            keys=[None, b""] if not (change == "key" and one) else [b"", None],
            headers=[[("a", b"")], None] if not (change == "header" and one) else [[("a", None)], None],
        )
        write_log(tmp_path / str(number), history)
        found.append(digest(tmp_path / str(number)).sha256)
    assert found[0] != found[1]
