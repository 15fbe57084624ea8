"""Tests of the archive: after any error or corruption during writing, storage or reading, it is complete or reports what is
missing.
"""

from __future__ import annotations

import errno
import hashlib
import os
import shutil
import threading
import time
from pathlib import Path
from tempfile import TemporaryDirectory

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyarrow import dataset

from tests.unit.archive.memory_archive import CLOSED, COUNT, ODD_TOPICS, SETTINGS, TABLE, archived, files, read_table
from tests.unit.archive.memory_log import LOG, Log, table_of
from tutti import limits
from tutti.archive.archiver import Archiver, Settings
from tutti.archive.catalog import Archive
from tutti.archive.layout import MARKER, decode_manifest, range_of
from tutti.archive.metrics import Metrics
from tutti.archive.reader import read
from tutti.archive.store import LocalStore
from tutti.archive.verify import verify
from tutti.data.frames.columns import COLUMNS
from tutti.data.names import is_name
from tutti.data.scan_request import ScanRequest
from tutti.errors import ConfigError, Damaged, DiskFull, FormatError, OffsetOutOfRange, TuttiError, Unavailable, WrongDirectory
from tutti.sources.archive import ArchiveSource


def of(table: pa.Table, topics: list[str] | None) -> pa.Table:
    return table if topics is None else table.filter(pc.is_in(table.column("topic"), value_set=pa.array(topics, pa.string())))


@pytest.fixture(params=["directory", "url", "fsspec"])
def where(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """An archive's place: a directory, the same by a URL, and a file system that only fsspec knows."""
    return {"directory": str(tmp_path / "a"), "url": f"file://{tmp_path}/a", "fsspec": f"memory://{tmp_path}/a"}[request.param]


def test_each_file_system_returns_the_archived_records(where: str) -> None:
    log = Log(TABLE)
    archive = archived(where, log)
    assert (archive.first, archive.end, log.saved) == (0, CLOSED, {"archive": CLOSED})
    assert [(span.first, span.end) for span in archive.spans] == [(at, at + 200) for at in range(0, CLOSED, 200)]
    again = Archive(where, LOG)
    assert read_table(again, 0, CLOSED).equals(TABLE.slice(0, CLOSED))
    for start, end, topics in ((1, 999, None), (199, 201, ["a"]), (350, 800, ["c", "a", "none"]), (7, 8, None), (5, 5, None)):
        assert read_table(again, start, end, topics).equals(of(TABLE.slice(start, end - start), topics))
        some = ("value", "headers")
        assert read_table(again, start, end, topics, some).equals(of(TABLE.slice(start, end - start), topics).select(list(some)))
    found = verify(again)
    assert found.good
    assert (found.records, found.ranges, found.files) == (CLOSED, 5, 15)


def test_the_same_range_is_the_same_file_however_its_records_came(tmp_path: Path) -> None:
    one, other = tmp_path / "one", tmp_path / "other"
    archived(one)
    archived(other, Log(TABLE, batch_rows=200))
    assert [path.relative_to(one) for path in files(one)] == [path.relative_to(other) for path in files(other)]
    assert [path.read_bytes() for path in files(one)] == [path.read_bytes() for path in files(other)]


def test_a_range_ends_at_a_tick_or_before_it_has_too_many_bytes(tmp_path: Path) -> None:
    archive = archived(tmp_path, Log(TABLE, each=10), Settings("archive", ticks=3, bytes=2500))
    assert [span.end for span in archive.spans] == [250, 300, 550, 600, 850, 900]
    manifest = archive.manifest(archive.spans[0])
    assert (manifest.tick_first, manifest.tick_last, manifest.ticks) == (0, 2, ((1, 100), (2, 200)))


def test_many_topics_share_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "ARCHIVE_FILES_MAX", 3)
    table = table_of(400, "abcdefgh")
    archive = archived(tmp_path, Log(table))
    manifest = archive.manifest(archive.spans[0])
    assert sorted(len(file.topics) for file in manifest.files) == [1, 1, 6]
    for topics in (None, ["a"], ["a", "h"], list("abcdefgh")):
        assert read_table(archive, 0, archive.end, topics).equals(of(table.slice(0, archive.end), topics))


def test_many_row_groups_are_read_apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "ARCHIVE_GROUP_BYTES", 2000)
    archive = archived(tmp_path)
    assert max(len(file.groups) for span in archive.spans for file in archive.manifest(span).files) > 5
    for start in range(0, CLOSED, 171):
        assert read_table(archive, start, CLOSED - 3).equals(TABLE.slice(start, CLOSED - 3 - start))
        assert read_table(archive, start, CLOSED, ["b"]).equals(of(TABLE.slice(start, CLOSED - start), ["b"]))


def test_a_range_ends_at_its_decompressed_size_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "ARCHIVE_RAW_BYTES_MAX", 8000)
    archive = archived(tmp_path)
    assert len(archive.spans) > 10
    assert read_table(archive, 0, archive.end).equals(TABLE.slice(0, archive.end))


class Dies(Exception):
    """Where a process was killed."""


class DyingStore(LocalStore):
    """A directory in which nothing happens after so many steps; the file of the last step may exist, truncated."""

    left = 0

    def _step(self, path: str, data: bytes, *, halfway: bool) -> None:
        DyingStore.left -= 1
        if DyingStore.left < 0:
            if halfway:
                target = Path(self._path(path))
                target.parent.mkdir(parents=True, exist_ok=True)
                target.with_name(target.name + ".x.partial").write_bytes(data[: len(data) // 2])
            raise Dies(path)

    def write(self, path: str, data: pa.Buffer) -> None:
        self._step(path, data.to_pybytes(), halfway=True)
        super().write(path, data)
        self._step(path, b"", halfway=False)

    def create(self, path: str, data: bytes) -> bool:
        self._step(path, data, halfway=True)
        made = super().create(path, data)
        self._step(path, b"", halfway=False)
        return made


def test_killed_at_any_step_it_continues_to_the_same_archive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = tmp_path / "whole"
    archived(whole)
    expected = {str(path.relative_to(whole)): path.read_bytes() for path in files(whole)}
    where = tmp_path / "killed"
    log, deaths = Log(TABLE), 0
    with monkeypatch.context() as dying:
        dying.setattr("tutti.archive.catalog.open_store", lambda place: DyingStore(str(place)))
        for steps in range(2, 60):
            DyingStore.left = steps % 5 + deaths // 4
            try:
                archived(where, log)
                break
            except Dies:
                deaths += 1
            except WrongDirectory:
                continue
            # What counts is whole at any moment, and no further than the log was told.
            found = verify(Archive(where)) if (where / MARKER).exists() else None
            assert found is None or found.good
            assert log.saved.get("archive", 0) <= (Archive(where).end if found else 0)
    assert deaths > 8
    left = {str(path.relative_to(where)): path.read_bytes() for path in files(where) if not path.name.endswith(".partial")}
    assert left == expected


def flipped(data: bytes, at: int) -> bytes:
    return data[:at] + bytes([data[at] ^ 0x10]) + data[at + 1 :]


@pytest.mark.parametrize("change", ["flip", "cut", "gone", "swap"])
def test_a_damaged_file_is_named_and_nothing_of_it_is_served(tmp_path: Path, change: str) -> None:
    archived(tmp_path)
    data = [path for path in files(tmp_path) if path.suffix == ".parquet"]
    victim = data[4]
    whole = victim.read_bytes()
    places = range(0, len(whole), 211) if change == "flip" else [0]
    for place in places:
        if change == "flip":
            victim.write_bytes(flipped(whole, place))
        elif change == "cut":
            victim.write_bytes(whole[:-1000])
        elif change == "gone":
            victim.unlink()
        else:
            victim.write_bytes(data[5].read_bytes())
        archive = Archive(tmp_path)
        given: list[pa.RecordBatch] = []
        said = victim.name
        try:
            given.extend(part.batch for part in read(archive, ScanRequest(0, CLOSED)))
        except Damaged as error:
            said = str(error)
        assert victim.name in said
        rows = sum(batch.num_rows for batch in given)
        assert pa.Table.from_batches(given, TABLE.schema).equals(TABLE.slice(0, rows))
        assert rows < CLOSED or (change == "flip" and place < 4)  # of the four bytes before the first chunk nothing is read
        found = verify(archive) if place % (211 * 8) == 0 else None
        assert found is None or (not found.good and any(victim.name in wrong for wrong in found.wrong))


def test_a_damaged_manifest_is_named(tmp_path: Path) -> None:
    archived(tmp_path)
    victim = files(tmp_path / "ranges")[2]
    whole = victim.read_bytes()
    for place in range(0, len(whole), 61):
        victim.write_bytes(flipped(whole, place))
        with pytest.raises((Damaged, FormatError), match=victim.name):
            read_table(Archive(tmp_path), 390, 410)
    victim.write_bytes(files(tmp_path / "ranges")[1].read_bytes())
    with pytest.raises(Damaged, match=r"describes \[200, 400\): it was renamed"):
        read_table(Archive(tmp_path), 400, 410)
    deep = b'{"format":1,"log":' + b"[" * 5_000 + b"]" * 5_000 + b"}"
    victim.write_bytes(deep + b"\n" + hashlib.sha256(deep).hexdigest().encode() + b"\n")
    with pytest.raises(Damaged, match=f"{victim.name} cannot be read"):
        read_table(Archive(tmp_path), 400, 410)
    newer = whole.replace(b'"format":1', b'"format":9')
    with pytest.raises(Damaged, match="SHA-256 does not match"):
        decode_manifest(newer, "m", victim.name)


def test_a_missing_range_is_reported_by_readers_and_verify(tmp_path: Path) -> None:
    archive = archived(tmp_path)
    files(tmp_path / "ranges")[2].unlink()
    archive = Archive(tmp_path)
    assert (archive.end, archive.holes()) == (400, [(400, 600)])
    with pytest.raises(OffsetOutOfRange, match="records 400 to 599 are missing in the archive"):
        read_table(archive, 390, 700)
    assert read_table(archive, 600, CLOSED).equals(TABLE.slice(600, CLOSED - 600))
    found = verify(archive)
    assert (found.good, found.wrong, found.holes) == (False, (), ((400, 600),))
    assert ArchiveSource(archive).frontier().offset == 400


def test_a_directory_that_is_not_an_archive_or_of_another_log_is_refused(tmp_path: Path) -> None:
    with pytest.raises(WrongDirectory, match=r"is not an archive: it has no archive\.json; `tutti archive run` creates one"):
        Archive(tmp_path)
    archived(tmp_path)
    with pytest.raises(WrongDirectory, match=f"archive of log {LOG}, not of log cd"):
        Archive(tmp_path, "cd" * 16)
    with pytest.raises(WrongDirectory, match="use another archive"):
        Archiver(Log(TABLE, log="cd" * 16), Archive(tmp_path), SETTINGS).begin()
    (tmp_path / MARKER).unlink()
    with pytest.raises(Damaged, match=r"its file archive\.json is missing; restore archive\.json from a copy: it has the format"):
        Archive(tmp_path, LOG, make=True)


def test_the_error_about_a_directory_names_the_archive_below_or_above(tmp_path: Path) -> None:
    archived(tmp_path / "ingest")
    for near in (tmp_path, tmp_path / "ingest" / "data"):
        with pytest.raises(WrongDirectory, match=f"^{near} is not an archive: .*; did you mean {tmp_path / 'ingest'}\\?$"):
            Archive(near)


def test_ranges_and_manifests_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Proves that an archive of too many ranges is refused rather than held, and that manifests that were read long ago go."""
    archived(tmp_path)
    archive = Archive(tmp_path)
    count = len(archive.spans)
    assert count > 2
    monkeypatch.setattr(limits, "ARCHIVE_MANIFESTS_KEPT", 2)
    for span in archive.spans:
        archive.manifest(span)
    archive.manifest(archive.spans[-2])  # is used again, and newer
    archive.manifest(archive.spans[0])
    assert list(archive._manifests) == [archive.spans[-2].name, archive.spans[0].name]
    monkeypatch.setattr(limits, "ARCHIVE_RANGES_MAX", count)
    archive.refresh()
    monkeypatch.setattr(limits, "ARCHIVE_RANGES_MAX", count - 1)
    for act in (archive.refresh, lambda: Archive(tmp_path)):
        with pytest.raises(FormatError, match=f"has {count} ranges, above the limit of {count - 1}"):
            act()


def test_a_place_that_cannot_be_written_is_a_wrong_configuration(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Proves that a file, what lies below one, and a directory of others end the command with 2: waiting does not mend them."""
    file = tmp_path / "file"
    file.write_text("mine")
    for place in (file, file / "below"):
        for make in (True, False):
            with pytest.raises(ConfigError, match=f"archive {place} (is not a directory|is not writable)") as raised:
                Archive(place, LOG, make=make)
            assert raised.value.exit_code == 2

    def denied(*_: object) -> int:
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(os, "mkdir", denied)
    with pytest.raises(ConfigError, match=r"is not writable \(Permission denied\): give a writable directory"):
        Archive(tmp_path / "new", LOG, make=True)


def test_a_directory_that_becomes_a_file_under_an_archiver_is_waited_out(tmp_path: Path) -> None:
    """A lost directory under a running archiver may return: a mount, or a moved directory."""
    archive = archived(tmp_path / "a")
    shutil.rmtree(tmp_path / "a")
    (tmp_path / "a").write_text("")
    with pytest.raises(Unavailable, match="Not a directory"):
        archive.refresh()


def test_ranges_that_overlap_are_read_once(tmp_path: Path) -> None:
    """Proves that two archivers with different first offsets or settings do no harm."""
    archived(tmp_path, settings=Settings("archive", ticks=2))
    other = tmp_path / "other"
    archived(other, Log(TABLE, start=130), Settings("archive", ticks=3))
    for path in files(other):
        target = tmp_path / path.relative_to(other)
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(path.read_bytes())
    archive = Archive(tmp_path)
    assert len(archive.spans) == 5 + 3
    for start in (0, 131, 299, 555):
        assert read_table(archive, start, CLOSED).equals(TABLE.slice(start, CLOSED - start))
    assert verify(archive).good


def test_two_archivers_take_turns_without_harm(tmp_path: Path) -> None:
    log = Log(TABLE)
    pair = [Archiver(log, Archive(tmp_path, LOG, make=True), SETTINGS) for _ in range(2)]
    for one in pair:
        one.begin()
    for one in (pair[0], pair[1], pair[1], pair[0], pair[0], pair[1], pair[1], pair[0], pair[0], pair[1], pair[1]):
        one._archive.refresh()
        one.step()
    assert [one.offset for one in pair] == [CLOSED, CLOSED]
    assert sum(one.ranges for one in pair) == 5
    assert verify(Archive(tmp_path)).good
    assert log.saved == {"archive": CLOSED}


def test_records_lost_before_they_were_archived_stop_it_or_leave_a_gap(tmp_path: Path) -> None:
    log = Log(TABLE)
    log.end = 450
    archived(tmp_path, log)
    log.start, log.end = 700, COUNT
    with pytest.raises(OffsetOutOfRange, match=r"removed records 400 to 699 .* add 'archive' to \[retention\] keep_for"):
        archived(tmp_path, log)
    archive = archived(tmp_path, log, SETTINGS._replace(skip_lost=True))
    assert archive.holes() == [(400, 700)]
    assert archive.spans[-1].end == CLOSED


def test_an_archive_that_lost_its_end_has_the_reader_go_back(tmp_path: Path) -> None:
    log = Log(TABLE)
    archived(tmp_path, log)
    files(tmp_path / "ranges")[-1].unlink()
    archive = Archive(tmp_path)
    archiver = Archiver(log, archive, SETTINGS)
    archiver.begin()
    assert (log.saved, log.backwards) == ({"archive": 800}, [800])
    assert archiver.step() is not None
    assert archiver.step() is None
    assert log.saved == {"archive": CLOSED}
    assert verify(archive).good


def test_a_log_that_lags_its_archive_is_not_archived(tmp_path: Path) -> None:
    log = Log(TABLE)
    archived(tmp_path, log)
    log.end = 900
    with pytest.raises(WrongDirectory, match="ends at offset 1000, but the log ends at 900"):
        archived(tmp_path, log)


class Failing(LocalStore):
    """A directory that fails for a while: each of these errors is raised once, and files to corrupt are written corrupt."""

    def __init__(self, root: str, raises: list[TuttiError], spoils: int = 0) -> None:
        super().__init__(root)
        self.raises = raises
        self.spoils = spoils

    def write(self, path: str, data: pa.Buffer) -> None:
        if self.raises:
            raise self.raises.pop(0)
        if self.spoils:
            self.spoils -= 1
            data = pa.py_buffer(flipped(data.to_pybytes(), data.size // 2))
        super().write(path, data)


def test_temporary_failures_are_reported_and_retried_and_wrong_writes_do_not_count(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(limits, "ARCHIVE_RETRY_US_MIN", 1000)
    monkeypatch.setattr(limits, "ARCHIVE_POLL_US", 1000)
    store = Failing(str(tmp_path), [DiskFull("no room for it"), DiskFull("no room for it"), Unavailable("away")], spoils=1)
    monkeypatch.setattr("tutti.archive.catalog.open_store", lambda _: store)
    log = Log(TABLE)
    archiver = Archiver(log, Archive(tmp_path, LOG, make=True), SETTINGS)
    stop = threading.Event()
    thread = threading.Thread(target=archiver.run, args=(stop, lambda: None))
    thread.start()
    deadline = time.monotonic() + 30
    while log.saved.get("archive") != CLOSED and time.monotonic() < deadline:
        time.sleep(0.005)
    stop.set()
    thread.join(30)
    assert (archiver.failures, archiver.trouble, archiver.offset) == (4, "", CLOSED)
    told = [record.getMessage() for record in caplog.records]
    assert [sum(text in line for line in told) for text in ("no room for it", "away", "differ from the written ones")] == [1, 1, 1]
    assert verify(Archive(tmp_path)).good
    figures = {metric.name: metric.samples[0].value for metric in Metrics(archiver).collect()}
    assert figures["tutti_archive_offset"] == CLOSED
    assert figures["tutti_archive_lag_records"] == COUNT - CLOSED
    assert (figures["tutti_archive_working"], figures["tutti_archive_failures"]) == (1, 4)


def test_once_reports_failures(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tutti.archive.catalog.open_store", lambda _: Failing(str(tmp_path), [DiskFull("no room for it")]))
    with pytest.raises(DiskFull, match="no room for it"):
        archived(tmp_path)


def test_old_files_without_a_range_are_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    archive = archived(tmp_path)
    (tmp_path / "data" / "ticks=0-1" / "left.parquet").write_bytes(b"left")
    assert verify(archive).orphans == ()  # somebody may be about to name it
    monkeypatch.setattr(limits, "ARCHIVE_ORPHAN_US", -60_000_000)
    found = verify(archive)
    assert (found.good, found.orphans) == (True, ("data/ticks=0-1/left.parquet",))


def test_any_engine_reads_the_files_without_conversion(tmp_path: Path) -> None:
    archived(tmp_path)
    found = dataset.dataset(tmp_path / "data", format="parquet").to_table().sort_by("offset")
    assert found.select(list(COLUMNS)).equals(TABLE.slice(0, CLOSED))


NAMES = st.text("AaZz09._-", min_size=1, max_size=249).filter(is_name) | st.sampled_from(ODD_TOPICS)


@settings(max_examples=20)
@given(st.lists(NAMES, min_size=1, max_size=8, unique=True), st.integers(1, 8))
def test_an_engine_that_reads_directories_as_columns_finds_each_topic_by_its_name(names: list[str], most: int) -> None:
    """No directory says what a column holds: of `topic=007` an engine makes the number 7."""
    topic = TABLE.schema.get_field_index("topic")
    column = pa.array([names[number % len(names)] for number in range(COUNT)], pa.string())
    table = TABLE.set_column(topic, TABLE.schema.field(topic), column)
    with TemporaryDirectory() as where, pytest.MonkeyPatch.context() as patch:
        patch.setattr(limits, "ARCHIVE_FILES_MAX", most)
        archived(where, Log(table))
        found = dataset.dataset(Path(where, "data"), format="parquet", partitioning="hive").to_table().sort_by("offset")
    assert found.select(list(COLUMNS)).equals(table.slice(0, CLOSED))


def test_names_that_are_no_manifests_are_passed_over(tmp_path: Path) -> None:
    archive = archived(tmp_path)
    (tmp_path / "ranges" / "notes.txt").write_text("mine")
    (tmp_path / "ranges" / "1-2.json").write_text("{}")
    archive.refresh()
    assert len(archive.spans) == 5
    assert range_of("1-2.json") is None


def test_times_are_found(tmp_path: Path) -> None:
    source = ArchiveSource(archived(tmp_path))
    times: list[int] = TABLE.column("timestamp").cast(pa.int64()).to_numpy()[:CLOSED].tolist()
    for wanted in (0, times[0], times[333], times[333] + 1, max(times), max(times) + 1):
        first = next((at for at, time_us in enumerate(times) if time_us >= wanted), CLOSED)
        assert source.offset_for_time(wanted) == first


def test_topics_and_plans_of_an_archive_alone(tmp_path: Path) -> None:
    source = ArchiveSource(archived(tmp_path))
    table = TABLE.slice(0, CLOSED)
    assert {topic.name: topic.records for topic in source.topics()} == {name: of(table, [name]).num_rows for name in "abc"}
    for splits in (1, 2, 3, 10):
        parts = source.plan(ScanRequest(0, CLOSED), splits=splits)
        assert len(parts) <= max(splits, 1)
        assert [parts[0].start, *(part.end for part in parts)] == [*(part.start for part in parts), CLOSED]
        assert sum(part.rows for part in parts) == CLOSED
    assert sum(part.rows for part in source.plan(ScanRequest(0, CLOSED, ("a",)))) == of(table, ["a"]).num_rows
