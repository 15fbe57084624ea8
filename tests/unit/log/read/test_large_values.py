"""What is small on disk may be large in memory: no reader of a log holds more than a batch, whatever compression made of it."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from mmap import MADV_WILLNEED, PAGESIZE, mmap
from pathlib import Path

import pyarrow as pa
import pytest

from tests.unit.log.history import Compression, History, expected, seen, write_log
from tutti import limits
from tutti.log.files import mapped_pages
from tutti.log.files.options import LogOptions
from tutti.log.format import frame_iterator
from tutti.log.read.reader import LogReader
from tutti.log.read.scan import scan
from tutti_gateway.log.tools.digest import digest

KIB, MIB = 1 << 10, 1 << 20
OPTIONS = LogOptions(segment_bytes=4 * MIB, prepared_segments=0, reserved_bytes=0, disk_low_bytes=0)


@contextmanager
def most_memory() -> Iterator[list[int]]:
    """The most that Arrow held at once, bytes, once the block is left."""
    pool, before = pa.proxy_memory_pool(pa.default_memory_pool()), pa.default_memory_pool()
    most: list[int] = []
    pa.set_memory_pool(pool)
    try:
        yield most
        most.append(pool.max_memory() or 0)
    finally:
        pa.set_memory_pool(before)


@pytest.mark.parametrize("compression", ["zstd", "lz4"])
@pytest.mark.parametrize("lie", [0, None])
def test_compressed_frames_are_joined_by_what_they_become(tmp_path: Path, compression: Compression, lie: int | None) -> None:
    history = History()
    for number in range(64):
        frame = history.batch("p", "t", [b"%d" % number * 1000, bytes(256 * KIB)], compression=compression)
        if lie is not None:  # nothing rests on what a header says of it
            frame.raw_length = lie
    history.batch("p", "t", [bytes(2 * MIB)], compression=compression)
    history.batch("p", "t", [b"small"])
    write_log(tmp_path, history, OPTIONS)
    reader = LogReader(tmp_path)
    end = len(history.records)
    assert sum(map(int, [frame.size for frame in history.frames])) < MIB  # they fit into one batch, as they stand on the disk
    with most_memory() as most:
        sizes = [batch.get_total_buffer_size() for batch in scan(reader, 0, end, bytes_max=MIB)]
    assert len(sizes) == 64 // 3 + 3
    assert max(sizes[:-2]) <= MIB + 64 * KIB
    assert most[0] < 2 * (2 * MIB + MIB)  # a batch, and the frame behind it
    assert seen(scan(reader, 1, end - 1, bytes_max=MIB)) == expected(history, 1, end - 1)
    reader.close()


def test_a_frame_of_very_many_records_comes_in_parts_that_are_made_one_by_one(tmp_path: Path) -> None:
    history = History()
    topic = "t" * 200
    history.batch("p", topic, [b""] * 100_000, compression="zstd")
    history.batch("p", topic, [b"x"])
    write_log(tmp_path, history, OPTIONS)
    reader = LogReader(tmp_path)
    tracemalloc.start()
    counts = [batch.num_rows for batch in scan(reader, 3, 99_999, columns=["topic"], rows_max=1000)]
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert counts == [1000] * 99 + [996]
    assert most < 10 * MIB  # the names of all records together are 20 MB
    parts = list(scan(reader, 3, 99_999, columns=["offset", "sequence"], rows_max=1000))
    assert pa.Table.from_batches(parts)["offset"].to_pylist() == list(range(3, 99_999))
    assert pa.Table.from_batches(parts)["sequence"].to_pylist() == list(range(4, 100_000))
    reader.close()


def test_a_digest_holds_no_more_than_a_batch(tmp_path: Path) -> None:
    found = []
    chosen: tuple[Compression, ...] = (None, "zstd")
    for compression in chosen:
        history = History()
        for number in range(150):
            history.batch("p", "t", [b"%d" % number, bytes(256 * KIB)], compression=compression)
        write_log(tmp_path / str(compression), history, OPTIONS)
        with most_memory() as most:
            found.append(digest(tmp_path / str(compression)).sha256)
    assert most[0] < 3 * limits.READ_BATCH_BYTES_MAX  # of 37 MiB in all
    assert found[0] == found[1]


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, int]]:
    """What is asked of the disk from now on, in order: "advise" or "read", and how many bytes."""
    noted: list[tuple[str, int]] = []

    def noting(name: str, act: Callable[[mmap, int, int], None]) -> Callable[[mmap, int, int], None]:
        def note(mapped: mmap, start: int, length: int) -> None:
            noted.append((name, length))
            act(mapped, start, length)

        return note

    monkeypatch.setattr(frame_iterator, "advise", noting("advise", mapped_pages.advise))
    monkeypatch.setattr(frame_iterator, "populate", noting("read", mapped_pages.populate))
    return noted


def large(asked: list[tuple[str, int]]) -> list[tuple[str, int]]:
    """Without what registered names."""
    return [one for one in asked if one[1] > 8 * KIB]


def test_a_scan_reads_little_at_first_and_more_the_further_it_goes(tmp_path: Path, reads: list[tuple[str, int]]) -> None:
    """Proves what a seek has the disk do: its frames alone are read in, and those around them once a reader goes on."""
    history = History()
    for number in range(160):
        history.batch("p", "t", [b"%d" % number + bytes(64 * KIB)])
    write_log(tmp_path, history, OPTIONS)
    first_bytes, second_bytes = limits.READ_FIRST_BYTES
    with closing(LogReader(tmp_path)) as reader:
        first = next(scan(reader, 80, 160))
        assert [kind for kind, _ in reads] == ["advise", "read"]
        assert max(size for _, size in reads) <= first_bytes + PAGESIZE
        assert first.get_total_buffer_size() <= first_bytes
        reads.clear()
        assert seen(scan(reader, 0, 160)) == expected(history, 0, 160)
        asked = large(reads)
        assert [kind for kind, _ in asked[:4]] == ["advise", "read"] * 2
        assert asked[0][1] == asked[1][1] <= first_bytes + PAGESIZE
        assert first_bytes < asked[2][1] == asked[3][1] <= second_bytes + PAGESIZE
        assert {kind for kind, _ in asked[4:]} == {"read"}
        assert max(size for _, size in asked[4:]) > limits.READ_BATCH_BYTES_MAX / 2
        reads.clear()
        assert next(scan(reader, 0, 160, sequential=True)).num_rows > 10 * first.num_rows
        assert {kind for kind, _ in reads} == {"read"}
        reads.clear()
        next(scan(reader, 0, 160, bytes_max=limits.READ_BATCH_BYTES_MIN))  # as where very many read at once
        assert [kind for kind, _ in large(reads)] == ["advise", "read"]
        assert max(size for _, size in reads) <= limits.READ_BATCH_BYTES_MIN + PAGESIZE


def test_of_a_topic_among_others_its_own_frames_are_read(tmp_path: Path, reads: list[tuple[str, int]]) -> None:
    """Proves that what lies between small frames of a topic is not read in with them, and that near ones are read by one call."""
    history = History()
    for number in range(160):
        topic = "rare" if number % 40 == 0 else "even" if number % 2 == 0 else "odd"
        history.batch("p", topic, [b"%d" % number + bytes(16 * KIB)])
    write_log(tmp_path, history, OPTIONS)
    with closing(LogReader(tmp_path)) as reader:
        reads.clear()
        assert [row["offset"] for row in seen(scan(reader, 0, 160, topics=["rare"]))] == [0, 40, 80, 120]
        assert [kind for kind, _ in large(reads)] == ["advise"] * 4 + ["read"] * 4
        assert max(size for _, size in reads) < 24 * KIB
        reads.clear()
        assert [row["offset"] for row in seen(scan(reader, 1, 21, topics=["odd"]))] == list(range(1, 21, 2))
        asked = large(reads)
        assert [kind for kind, _ in asked] == ["advise", "read"], "one call, though a frame of another topic lies between any two"
        assert asked[0][1] > 10 * 16 * KIB


def test_the_first_batch_of_a_topic_waits_for_few_places_of_the_disk(tmp_path: Path, reads: list[tuple[str, int]]) -> None:
    """Proves the bound of what who wants one place waits for, and that the device is asked for all of a group at once."""
    history, places = History(), limits.READ_FIRST_POSITIONS
    for number in range(6 * places):
        history.batch("p", "t" if number % 2 else "rare", [b"%d" % number + bytes(66 * KIB if number % 2 else 10 * KIB)])
    write_log(tmp_path, history, OPTIONS)
    with closing(LogReader(tmp_path)) as reader:
        reads.clear()
        batches = scan(reader, 0, 6 * places, topics=["rare"])
        assert next(batches).num_rows == places
        once = ["advise"] * places + ["read"] * places
        assert [kind for kind, _ in large(reads)] == once
        assert sum(batch.num_rows for batch in batches) == 2 * places
        assert [kind for kind, _ in large(reads)] == 3 * once


def test_advice_is_to_read_what_is_named() -> None:
    """Proves what the kernel is told: without it a miss has it read what lies around, up to megabytes."""
    told: list[tuple[int, int, int]] = []

    class Mapped:
        def madvise(self, *advice: int) -> None:
            told.append(advice)  # type: ignore[arg-type]  # three of them, as is asserted

    mapped_pages.advise(Mapped(), 4096, 100)  # type: ignore[arg-type]  # as far as it is used
    assert told == [(MADV_WILLNEED, 4096, 100)]
