"""Tests with real gateways and archivers: records that retention removes are in the archive, and reads continue across both without
a gap.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from tests.integration.archive.archiver import ArchiverProcess
from tests.support.gateway_process import GatewayProcess
from tests.support.running_group import RunningGroup
from tests.support.waiting import wait_until
from tutti import Producer, Reader
from tutti.archive.catalog import Archive
from tutti.archive.verify import verify
from tutti.data.scan_request import ScanRequest
from tutti.errors import OffsetOutOfRange, UsageError, WrongDirectory
from tutti.log.files.layout import list_positions
from tutti.sources.archive import ArchiveSource
from tutti.sources.flight import FlightSource
from tutti.sources.tiered import TieredSource
from tutti_gateway.cli.commands import run
from tutti_gateway.core import limits
from tutti_gateway.log.tools.digest import digest

SEGMENT = limits.SEGMENT_BYTES_MIN
RECORD = 500_000
SEGMENT_RECORDS = SEGMENT // RECORD
KEPT = (
    f"[timers]\ntick_ms = 200\n[log]\nsegment_bytes = {SEGMENT}\nprepared_segments = 0\n"
    f'[retention]\nbytes = {2 * SEGMENT}\nkeep_for = ["archive"]\n'
)
WAIT_S = 60.0


def fill(url: str, segments: int, seed: int = 0) -> None:
    """Records of three topics that no compression makes small, in so many segments; ticks fall between them."""
    chance = random.Random(seed)
    with Producer(url, delivery_timeout=WAIT_S) as producer:
        for number in range(segments * SEGMENT_RECORDS):
            topic = "a" if number % 5 else "b" if number % 2 else "c"
            value = b"%d" % number if topic != "a" else chance.randbytes(RECORD)
            producer.send(topic, value, key=None if number % 3 else b"k", headers=[("n", None)] if number % 7 == 0 else ())
            if number % 40 == 0:
                producer.flush()


def all_of(**where: Any) -> pa.Table:
    with Reader(start=where.pop("start", "earliest"), **where) as reader:
        return pa.Table.from_batches(list(reader), pa.schema([]) if reader.position == 0 else None)


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatewayProcess]:
    with GatewayProcess(tmp_path_factory.mktemp("archived"), extra=KEPT) as running:
        yield running


@pytest.fixture(scope="module")
def filled(gateway: GatewayProcess, tmp_path_factory: pytest.TempPathFactory) -> tuple[GatewayProcess, Path, pa.Table]:
    """Return a gateway whose oldest records are only in the archive, that archive, and all records of the log."""
    fill(gateway.url, 4)
    wait_until(lambda: gateway.status()["retention"]["held_bytes"] > 0)
    told = gateway.status()
    assert told["start"] == 0  # a segment or two over the limit, and nothing has gone
    assert told["retention"]["keep_for"] == {"archive": 0}
    assert "waits for reader 'archive', which has committed offset 0" in told["retention"]["reason"]
    records = all_of(url=gateway.url)
    root = tmp_path_factory.mktemp("archive")
    done = ArchiverProcess(root / "a.toml", gateway.url, str(root / "archive"), range_bytes=8 << 20).once()
    assert (done["first"], done["log"]) == (0, told["log"])
    assert done["records"] == done["end"] > records.num_rows - 2 * SEGMENT_RECORDS
    wait_until(lambda: gateway.status()["start"] > 0 and not gateway.status()["retention"]["held_bytes"])
    assert gateway.status()["start"] <= done["end"]
    return gateway, root / "archive", records


def test_the_archive_equals_the_log(filled: tuple[GatewayProcess, Path, pa.Table]) -> None:
    gateway, where, records = filled
    archive = Archive(where)
    found = verify(archive)
    assert found.good
    assert found.records == archive.end
    batches = [found.batch for found in ArchiveSource(archive).scan(ScanRequest(0, archive.end))]
    assert pa.Table.from_batches(batches).equals(records.slice(0, archive.end))
    held = [span for span in archive.spans if span.first >= gateway.status()["start"]]
    assert held
    for span in held:  # the log still has these
        assert digest(gateway.data, span.first, span.end).sha256 == archive.manifest(span).digest


def test_reads_go_from_the_archive_to_the_log_without_a_seam(filled: tuple[GatewayProcess, Path, pa.Table]) -> None:
    gateway, where, records = filled
    start = gateway.status()["start"]
    assert all_of(url=gateway.url, archive=where).equals(records)
    for low, high in ((0, start), (start - 1, start + 1), (start - 7, start), (3, 3), (start, start + 5)):
        with Reader(gateway.url, start=low, end=high, archive=where) as reader:
            assert [record.offset for record in reader.records()] == list(range(low, high))
    with Reader(gateway.url, topics=["b", "c"], columns=["value", "offset"], start="earliest", archive=where) as reader:
        some = pa.Table.from_batches(list(reader))
        assert reader.position == records.num_rows
    assert some.column("offset").to_pylist() == [number for number in range(records.num_rows) if number % 5 == 0]
    time_us = records.column("timestamp")[start // 2]
    with Reader(gateway.url, start=time_us.as_py(), archive=where) as reader:
        assert reader.position == records.column("timestamp").to_pylist().index(time_us.as_py())
    with pytest.raises(OffsetOutOfRange, match=rf"begins at {start}, .* if archived, name the archive"):
        Reader(gateway.url, start=0)
    with pytest.raises(UsageError, match="'nothing'"), Reader(gateway.url, topics=["nothing"], archive=where) as reader:
        list(reader)


def test_tail_reads_on_from_the_archive(
    filled: tuple[GatewayProcess, Path, pa.Table], capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    gateway, where, records = filled
    more = ["tail", "--url", gateway.url, "--archive", str(where), "--topic", "b", "--topic", "c", "--format", "json"]
    assert run(more) == 0
    lines = capfdbinary.readouterr().out.splitlines()
    assert [json.loads(line)["offset"] for line in lines] == [number for number in range(records.num_rows) if number % 5 == 0]
    assert run([*more, "--last", "30"]) == 0
    assert capfdbinary.readouterr().out.splitlines() == lines[-30:]


def test_offsets_ticks_and_plans_cover_log_and_archive(filled: tuple[GatewayProcess, Path, pa.Table]) -> None:
    """Proves that archive and log together answer as a complete log does, wherever the log begins."""
    gateway, where, records = filled
    archive, reads = Archive(where), FlightSource(gateway.url)
    start, chance = gateway.status()["start"], random.Random(7)
    ticks: list[int] = records.column("tick").to_numpy().tolist()
    changes = [(ticks[at], at) for at in range(1, len(ticks)) if ticks[at] != ticks[at - 1]]
    for begins in (start, (start + archive.end) // 2, archive.end):
        both = TieredSource(reads, archive, begins)
        for _ in range(25):
            low = chance.randrange(archive.end)
            limit = chance.randrange(low, len(ticks))
            end, every = chance.randrange(limit, len(ticks)), chance.choice([1, 2, 3])
            good = [at for number, at in changes if number % every == 0 and low < at <= end]
            upto = [at for at in good if at <= limit]
            assert both.tick_end(low, limit, end, every) == (upto[-1] if upto else good[0] if good else low)
            parts = both.plan(ScanRequest(low, end), splits=chance.choice([1, 2, 5]))
            assert [low, *(part.end for part in parts)] == [*(part.start for part in parts), end]
            assert sum(part.rows for part in parts) == pytest.approx(end - low, abs=len(parts))
            if end > low:
                assert low < both.bytes_end(low, end, chance.choice([1, RECORD, 20 * RECORD, 2**40])) <= end


def test_an_archive_of_another_log_is_refused(filled: tuple[GatewayProcess, Path, pa.Table], tmp_path: Path) -> None:
    gateway, _, _ = filled
    Archive(tmp_path / "other", "ab" * 16, make=True)
    with pytest.raises(WrongDirectory, match=f"is the archive of log {'ab' * 16}, but the source is log "):
        Reader(gateway.url, archive=tmp_path / "other")
    archiver = ArchiverProcess(tmp_path / "a.toml", gateway.url, str(tmp_path / "other"))
    assert archiver.start(wait=False).end() == 2
    assert ", not of log" in archiver.log.read_text()


def test_files_and_archive_serve_with_the_gateway_down_and_so_does_the_archive_alone(
    filled: tuple[GatewayProcess, Path, pa.Table], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    gateway, where, records = filled
    gateway.kill()
    assert all_of(path=str(gateway.data), archive=where).equals(records)
    end = Archive(where).end
    assert all_of(archive=where).equals(records.slice(0, end))
    out = tmp_path / "r.jsonl"
    assert run(["replay", "--archive", str(where), "--start", "2", "--end", "4", "--topic", "a", "--out", str(out)]) == 0
    assert [json.loads(line)["offset"] for line in out.read_text().splitlines()] == [2, 3]
    path = ["--path", str(gateway.data), "--archive", str(where)]
    assert run(["replay", *path, "--start", "0", "--topic", "b", "--topic", "c", "--out", str(out)]) == 0
    assert len(out.read_text().splitlines()) == sum(number % 5 == 0 for number in range(records.num_rows))
    assert run(["replay", "--archive", str(where), "--topic", "nothing", "--out", str(out)]) == 2
    assert "has no topic 'nothing' in [0, " in capsys.readouterr().err


@pytest.mark.soak
def test_killed_and_concurrent_archivers_leave_one_complete_archive_and_gateways_trim_equally(tmp_path: Path) -> None:
    where = tmp_path / "archive"
    with RunningGroup(tmp_path, KEPT) as group:
        archivers = [ArchiverProcess(tmp_path / f"{name}.toml", group.url, str(where), more="") for name in ("x", "y")]
        chance = random.Random(3)
        for one in archivers:
            one.start()
        with Producer(group.url, producer="p", delivery_timeout=WAIT_S) as producer:
            sent = 0
            while sent < 5 * SEGMENT_RECORDS:
                producer.send("a", b"%09d" % sent + chance.randbytes(RECORD))
                sent += 1
                if sent % 30 == 0:
                    producer.flush()
                    victim = chance.choice(archivers)
                    victim.kill()
                    victim.start()
            producer.flush()
            # The last ticks need records behind them, and close nothing themselves.
            wait_until(lambda: Archive(where).end > 0)
            wait_until(lambda: len({gateway.status()["start"] for gateway in group.all.values()} - {0}) == 1)
        wait_until(lambda: all(len(list_positions(str(one.data), "seg", include_trimmed=True)) <= 3 for one in group.all.values()))
        starts = {gateway.status()["start"] for gateway in group.all.values()}
        assert len(starts) == 1
        assert [one.stop() for one in archivers] == [0, 0]
        archive = Archive(where)
        assert starts.pop() <= archive.end <= sent
        assert verify(archive).good
        with Reader(group.url, archive=where, columns=["value"]) as reader:
            values = [value.as_py()[:9] for batch in reader for value in batch.column("value")]
        assert values == [b"%09d" % number for number in range(sent)]
