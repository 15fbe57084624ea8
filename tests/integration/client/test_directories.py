"""Tests of reads from directories with every gateway down: copies replace each other, and corruption and foreign directories are
reported.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.gateway_process import GatewayProcess
from tutti import Damaged, DirectoryRefused, OffsetOutOfRange, Producer, Reader, UsageError
from tutti.data.frames.columns import COLUMNS, schema_of
from tutti.data.scan_request import ScanRequest
from tutti.sources.files import FileSource

RECORDS = 600


@pytest.fixture(scope="module")
def stopped(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The directory of a gateway that was stopped: two topics in turn, 20 records a batch."""
    with GatewayProcess(tmp_path_factory.mktemp("stopped")) as gateway:
        with Producer(gateway.url, producer="p") as p:
            for number in range(RECORDS):
                p.send("ab"[number // 20 % 2], b"value %d" % number)
        assert gateway.stop() == 0
        yield gateway.data


@pytest.fixture
def copy(stopped: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(stopped, tmp_path / "copy"))


def values(source: Any) -> list[int]:
    return [int(value.split()[1]) for batch in source for value in batch.column("value").to_pylist()]


def damage(directory: Path, number: int) -> None:
    """Flip a bit in the record of that number."""
    (segment,) = (directory / "log").glob("0*.seg")
    data = bytearray(segment.read_bytes())
    at = data.index(b"value %d" % number)
    data[at] ^= 1
    segment.write_bytes(data)


def test_a_range_of_files(stopped: Path) -> None:
    with Reader(path=str(stopped)) as r:
        batches = list(r)
    assert values(batches) == list(range(RECORDS))
    assert all(batch.schema == schema_of(COLUMNS) for batch in batches)
    with Reader(path=stopped, topics=["b"], columns=["value"], start=30, end=70) as r:
        assert values(r) == [*range(30, 40), *range(60, 70)]
        assert r.position == 70


def test_a_copy_ends_where_the_original_does(stopped: Path, copy: Path) -> None:
    with FileSource([stopped, copy]) as files:
        assert files.frontier().offset == RECORDS
        assert files.frontier().state == "files"
        assert files.paths == [str(stopped), str(copy)]


def test_a_reader_continues_at_another_gateway_after_damage(stopped: Path, copy: Path) -> None:
    damage(copy, 333)
    with Reader(path=copy) as r:
        seen: list[int] = []
        with pytest.raises(Damaged, match=str(copy)):  # noqa: PT012 - the loop is what raises
            for batch in r:
                seen += values([batch])
        assert seen == list(range(len(seen)))
        assert 0 < len(seen) <= 333
        assert r.position == len(seen)
    for paths in ([copy, stopped], [stopped, copy]):
        with Reader(path=paths) as r:
            assert values(r) == list(range(RECORDS))
        with Reader(path=paths, topics=["a"], columns=["value"]) as r:
            assert values(r) == [number for number in range(RECORDS) if number // 20 % 2 == 0]


def test_damaged_everywhere_is_damaged(stopped: Path, copy: Path, tmp_path: Path) -> None:
    other = Path(shutil.copytree(stopped, tmp_path / "other"))
    damage(copy, 333)
    damage(other, 333)
    with pytest.raises(Damaged, match="fails its CRC"):
        list(Reader(path=[copy, other]))


def test_another_log_is_refused(stopped: Path, tmp_path: Path) -> None:
    with GatewayProcess(tmp_path) as gateway:
        gateway.stop()
        with pytest.raises(DirectoryRefused, match="different logs"):
            FileSource([stopped, gateway.data])


@pytest.mark.parametrize("path", ["nothing-there", ""])
def test_a_path_that_is_not_a_data_directory(path: str, tmp_path: Path) -> None:
    with pytest.raises(DirectoryRefused, match="not the data directory"):
        FileSource(tmp_path / path)


def test_wrong_ranges(stopped: Path) -> None:
    with FileSource(stopped) as files:
        for start, end in ((0, RECORDS + 1), (RECORDS + 1, RECORDS + 2)):
            with pytest.raises(OffsetOutOfRange, match=f"committed up to {RECORDS}"):
                list(files.scan(ScanRequest(start, end)))
        with pytest.raises(UsageError, match="ends before it begins"):
            list(files.scan(ScanRequest(5, 4)))
        assert list(files.scan(ScanRequest(RECORDS, RECORDS))) == []
        assert list(files.scan(ScanRequest(7, 7))) == []
        with pytest.raises(UsageError, match="no topic 'c'"):
            list(files.scan(ScanRequest(0, 5, ("c",))))
        assert list(files.scan(ScanRequest(0, 5, ("c",), absent_ok=True))) == []
    with pytest.raises(UsageError, match="no topic 'c'"):
        Reader(path=stopped, topics=["c"], start="latest")
    with pytest.raises(UsageError, match="give at least one data directory"):
        FileSource([])


def test_splits_cover_the_range_once(stopped: Path) -> None:
    with FileSource(stopped) as files:
        parts = files.plan(ScanRequest(10, RECORDS), splits=5)
        assert [part.start for part in parts] == [10, *[part.end for part in parts[:-1]]]
        assert parts[-1].end == RECORDS
        assert len(parts) > 1
        batches = [found.batch for part in parts for found in files.scan(ScanRequest(part.start, part.end))]
        assert values(batches) == list(range(10, RECORDS))
