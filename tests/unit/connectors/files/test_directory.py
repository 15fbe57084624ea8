"""Tests of the directory scan: late, replaced, truncated, deleted, moved and corrupt files, and a ledger of another log."""

from __future__ import annotations

import gzip
import os
import shutil
from pathlib import Path
from typing import Any

import orjson
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.unit.connectors.files.fake_log import Log, Rig
from tutti.batching.encoder import TIME_US_MIN
from tutti.errors import Aborted, ConfigError, Damaged, Fenced, FormatError, Unavailable, WrongDirectory
from tutti_connect.files import limits
from tutti_connect.files import session as session_module
from tutti_connect.files.config import load_source_config
from tutti_connect.files.discovery.directory import Directory
from tutti_connect.files.formats.file_reader import FileReader


def quarantined(rig: Rig) -> list[Any]:
    return sorted((orjson.loads(path.read_bytes()) for path in (rig.root / "q").iterdir()), key=lambda one: one["file"])


def test_late_files_come_when_they_are_there(tmp_path: Path) -> None:
    """Proves that a name before the position is read too, each once, and that files that are there together are read in order."""
    rig = Rig(tmp_path)
    for name in ("b", "d", "c"):
        rig.write(name, name.encode())
    rig.turns(2, lambda: rig.write("a", b"a"))
    rig.turns()
    assert rig.log.values() == [b"b", b"c", b"d", b"a"]


def test_order_by_time(tmp_path: Path) -> None:
    rig = Rig(tmp_path, files='format = "lines"\norder = "time"')
    for second, name in enumerate(("b", "c", "a")):
        rig.write(name, name.encode())
        os.utime(rig.incoming / name, (second, second))
    rig.turns()
    assert rig.log.values() == [b"b", b"c", b"a"]


def test_topics_by_subdirectory(tmp_path: Path) -> None:
    """Proves that directories are named as the topics of their files, and that others are reported."""
    rig = Rig(tmp_path, top="# no topic")
    for name in ("x/2", "x/1", "y/1", "not a topic/1", "loose"):
        rig.write(name, name.encode())
    connector = rig.turns()
    assert (rig.log.values("x"), rig.log.values("y"), len(rig.log.rows)) == ([b"x/1", b"x/2"], [b"y/1"], 3)
    beside = "a file outside the topic directories; move it to the directory of its topic, or set topic"
    assert connector.directory.skipped == {"not a topic/: not a valid topic name", beside}


@pytest.mark.parametrize("folder", ["", "x/"])
def test_files_are_bounded_while_they_are_listed(tmp_path: Path, folder: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Proves that the scan stops one file above the limit, so a directory of millions exhausts no memory."""
    monkeypatch.setattr(limits, "FILES_MAX", 3)
    rig = Rig(tmp_path, top="# no topic" if folder else "")
    directory = Directory(rig.config)
    looked: list[str] = []
    monkeypatch.setattr(directory, "_is_wanted", looked.append)
    for number in range(3):
        rig.write(f"{folder}{number}", b"")
    assert len(directory.scan()) == 3
    looked.clear()
    for number in range(3, 20):
        rig.write(f"{folder}{number}", b"")
    with pytest.raises(Unavailable, match="has more than 3 files"):
        directory.scan()
    assert len(looked) == 4


def test_a_name_that_cannot_be_shown_is_reported(tmp_path: Path) -> None:
    rig = Rig(tmp_path)
    Path(os.fsdecode(os.fsencode(rig.incoming) + b"/\xff\n")).write_bytes(b"x")
    rig.write(".hidden", b"x")
    connector = rig.turns()
    assert (rig.log.rows, len(connector.directory.skipped)) == ([], 1)


@pytest.mark.parametrize("how", ["rewritten", "appended", "replaced", "cut"])
@pytest.mark.parametrize("changed", ["tell", "take"])
def test_a_known_name_with_a_different_file(tmp_path: Path, how: str, changed: str, caplog: pytest.LogCaptureFixture) -> None:
    """Proves that it is reported once and not duplicated, or read again completely on request."""
    rig = Rig(tmp_path, files=f'format = "lines"\nchanged = "{changed}"')
    rig.write("a", b"1\n2\n")
    rig.turns()
    content = {"rewritten": b"3\n4\n", "appended": b"1\n2\n3\n", "replaced": b"5\n6\n", "cut": b"1\n"}[how]
    if how == "replaced":
        rig.write("new", content)
        (rig.incoming / "new").rename(rig.incoming / "a")
    else:
        rig.write("a", content)
    caplog.clear()
    connector = rig.turns(3)
    assert rig.log.values() == [b"1", b"2", *(content.split() if changed == "take" else [])]
    assert connector.changed == sum("differs from the content" in text for text in caplog.messages) == 1
    rig.turns()
    assert connector.changed == 1


@pytest.mark.parametrize("name", ["a.gz", "a.GZ", "a.Gz"])
def test_the_case_of_a_suffix_does_not_count(tmp_path: Path, name: str) -> None:
    """A file that ended in .GZ was read as plain text, so compressed bytes became records."""
    rig = Rig(tmp_path)
    rig.write(name, gzip.compress(b"1\n2\n"))
    assert rig.turns(2).changed == 0
    assert rig.log.values() == [b"1", b"2"]


@pytest.mark.parametrize("form", ["lines", "gz"])
def test_a_file_that_is_renamed_is_the_same(tmp_path: Path, form: str, caplog: pytest.LogCaptureFixture) -> None:
    """Proves that it is reported and not read again, also if another file has its name by then; one with only its inode is new."""
    end = ".gz" if form == "gz" else ""
    packed = gzip.compress if end else bytes
    rig = Rig(tmp_path)
    rig.write(f"b{end}", packed(b"1\n"))
    rig.turns()
    (rig.incoming / f"b{end}").rename(rig.incoming / f"c{end}")
    rig.write(f"b{end}", packed(b"2\n"))
    assert rig.turns().changed == 0
    (rig.incoming / f"c{end}").rename(rig.incoming / f"b{end}")
    assert rig.turns().changed == 0
    assert (rig.log.values(), caplog.text.count("was renamed to")) == ([b"1", b"2"], 2)
    status = (rig.incoming / f"b{end}").stat()
    (rig.incoming / f"b{end}").rename(rig.incoming / f"d{end}")
    rig.write(f"d{end}", packed(b"3\n"))
    os.utime(rig.incoming / f"d{end}", ns=(status.st_atime_ns, status.st_mtime_ns))
    rig.turns()
    assert rig.log.values() == [b"1", b"2", b"3"]


def test_a_file_that_was_touched_or_put_back_is_the_same(tmp_path: Path) -> None:
    rig = Rig(tmp_path)
    rig.write("a", b"1\n2\n")
    rig.turns()
    os.utime(rig.incoming / "a", (1, 1))
    assert rig.turns().changed == 0
    (rig.incoming / "a").unlink()
    rig.turns()
    rig.write("a", b"1\n2\n")
    assert rig.turns().changed == 0
    assert rig.log.values() == [b"1", b"2"]


def test_a_log_that_is_rotated_truncated_and_rewritten(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Proves that a renamed log is read to its end although its new name does not match, and a truncated one from its beginning."""
    rig = Rig(tmp_path, files='format = "lines"\ngrows = true\npattern = "*.log"')
    rig.write("a.log", b"1\n2")
    rig.turns(1)
    assert rig.log.values() == [b"1"]
    rig.write("a.log", b"\n3\n", append=True)
    (rig.incoming / "a.log").rename(rig.incoming / "a.log.1")
    rig.write("a.log", b"4\n")
    rig.turns()
    assert sorted(rig.log.values(), key=str) == [b"1", b"2", b"3", b"4"]
    rig.write("a.log", b"")
    rig.write("a.log", b"5\n", append=True)
    connector = rig.turns()
    assert (rig.log.values()[-1], connector.changed) == (b"5", 1)
    (rig.incoming / "a.log").rename(rig.incoming / "old")
    shutil.copy(rig.incoming / "old", rig.incoming / "a.log")
    (rig.incoming / "old").unlink()
    rig.write("a.log", b"6\n", append=True)
    rig.turns()
    assert (rig.log.values()[4:], connector.changed) == ([b"5", b"6"], 1)
    (rig.incoming / "a.log.1").write_bytes(b"1\n2\n3\nhalf")
    rig.turns()
    (rig.incoming / "a.log.1").unlink()
    rig.turns()
    assert "a.log.1 is gone" in caplog.text


@pytest.mark.parametrize("turn", range(12))
@pytest.mark.parametrize("form", ["lines", "csv"])
def test_a_log_truncated_while_it_is_read_is_read_from_its_beginning(
    tmp_path: Path, turn: int, form: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Proves that none of the new rows is lost, at any position of the reader."""
    monkeypatch.setattr(limits, "FRAME_BYTES", 300)
    monkeypatch.setattr(limits, "BLOCK_BYTES", 512)
    monkeypatch.setattr(limits, "WINDOW_BYTES", 64)
    rig = Rig(tmp_path, files=f'format = "{form}"\ngrows = true')
    head = b"n\n" if form == "csv" else b""
    old, new = ([b"%s%04d" % (kind, number) for number in range(400)] for kind in (b"o", b"n"))
    rig.write("a", head + b"\n".join(old) + b"\n")
    sends = []
    with rig.session() as (connector, session):
        send = session._send

        def slow(frame: Any) -> None:
            sends.append(frame)
            if len(sends) == turn + 1:
                rig.write("a", head + b"\n".join(new) + b"\n")
            send(frame)

        monkeypatch.setattr(session, "_send", slow)
        for _ in range(4):
            session._scan()
            rig.log.decide(len(rig.log.undecided))
            session._process_outcomes()
            session._write_ledger()
    values = [value[5:-1] if form == "csv" else value for value in map(bytes, filter(None, rig.log.values()))]
    values = [value.strip(b'"') for value in values]
    assert [value for value in values if value.startswith(b"n")] == new
    assert [value for value in values if value.startswith(b"o")] == old[: len(values) - len(new)]
    assert connector.changed == 1


def test_a_file_deleted_while_it_is_read_is_reported(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "FRAME_BYTES", 100)
    rig = Rig(tmp_path)
    rig.write("a", b"".join(b"%d\n" % number for number in range(100)))
    assert rig.crash(12)
    with_some = len(rig.log.rows) + len(rig.log.undecided)
    assert 0 < with_some < 100
    (rig.incoming / "a").rename(tmp_path / "a")
    rig.turns()
    assert "a is gone" in caplog.text or not rig.log.rows
    (tmp_path / "a").rename(rig.incoming / "a")
    rig.turns()
    assert rig.log.values() == [b"%d" % number for number in range(100)]


def on_the_moon() -> bytes:
    """Parquet with times in an unknown zone."""
    sink = pa.BufferOutputStream()
    pq.write_table(pa.table({"t": pa.array([1], pa.timestamp("us", "Moon/Base"))}), sink)
    return sink.getvalue().to_pybytes()


@pytest.mark.parametrize(
    ("name", "files", "more", "data", "taken", "told"),
    [
        ("a.gz", 'format = "lines"', "", gzip.compress(os.urandom(2000).hex().encode() + b"\n" + b"1\n" * 9)[:-9], 0, "gzip"),
        ("a.gz", 'format = "lines"', "", b"no gzip", 0, "gzip"),
        ("a", 'format = "parquet"', "", b"PAR1 is no file", 0, "Parquet"),
        ("a", 'format = "parquet"', "", b"", 0, "Parquet"),
        ("a", 'format = "parquet"', "", on_the_moon(), 0, "time zone 'Moon/Base', which is unknown on this host"),
        ("a", 'format = "csv"', "", "a,b\n1,2\n".encode("utf-16"), 0, "UTF-16"),
        ("a", 'format = "csv"', "", b"a,a\n1,2\n", 0, "'a' twice"),
        ("a", 'format = "csv"', "[record]\nkey = 'id'", b"a,b\n1,2\n", 0, "no column 'id', which record.key names"),
        ("a", 'format = "csv"', "", b'"a,b\n1,2\n', 0, "quote"),
    ],
)
def test_an_unreadable_file_is_reported_and_the_others_continue(
    tmp_path: Path, name: str, files: str, more: str, data: bytes, taken: int, told: str
) -> None:
    rig = Rig(tmp_path, files=files + '\nafter = "delete"', more=more)
    rig.write(name, data)
    rig.turns()
    rig.turns()
    assert len(rig.log.rows) == taken
    (found,) = quarantined(rig)
    assert told in found["reason"]
    assert (found["file"], (rig.incoming / name).exists()) == (name, True)


def test_text_of_other_encodings_and_marks(tmp_path: Path) -> None:
    rig = Rig(tmp_path, files='format = "csv"\nencoding = "latin-1"')
    rig.write("a", "n\nü\n".encode("latin-1"))
    rig.turns()
    other = tmp_path / "other"
    other.mkdir()
    marked = Rig(other, files='format = "csv"', more='[csv]\ndelimiter = ";"\n[record]\nkey = "n"\nvalue = "v"\ntimestamp = "t"')
    marked.write("a", "\ufeffn;v;t\nü;;1970-01-01T00:00:02Z\n".encode())
    marked.turns()
    assert rig.log.values() == ['{"n":"ü"}'.encode()]
    (row,) = marked.log.rows
    assert (row.key, row.value, row.time_us) == ("ü".encode(), b"", 2_000_000)


def test_times_before_1970_are_kept(tmp_path: Path) -> None:
    """Proves that the microsecond before 1970 is not mistaken for a record without a time."""
    rig = Rig(tmp_path, files='format = "jsonl"', more='[record]\nvalue = "v"\ntimestamp = "t"')
    rig.write("a", b'{"v":"a","t":"1969-12-31T23:59:59.999999Z"}\n{"v":"b","t":"0001-01-01T00:00:00Z"}\n')
    rig.turns()
    assert [(row.value, row.time_us) for row in rig.log.rows] == [(b"a", -1), (b"b", TIME_US_MIN)]


def test_a_header_that_is_not_whole_yet_is_waited_for(tmp_path: Path) -> None:
    rig = Rig(tmp_path, files='format = "csv"\ngrows = true')
    for part in (b"a,", b"b\n1", b",2\n3,"):
        rig.write("x", part, append=True)
        rig.turns(1)
    assert rig.log.values() == [b'{"a":"1","b":"2"}']


def test_a_file_that_cannot_be_opened_is_tried_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Proves that the others continue, and that it is read once it is readable."""
    rig = Rig(tmp_path)
    rig.write("a", b"1")
    rig.write("b", b"2")
    real = FileReader

    def refused(path: str, config: Any) -> Any:
        if path.endswith("a"):
            raise PermissionError(13, "Permission denied")
        return real(path, config)

    with monkeypatch.context() as patch:
        patch.setattr(session_module, "FileReader", refused)
        assert rig.turns().failures == 1
    rig.turns()
    assert rig.log.values() == [b"2", b"1"]


def test_a_file_that_is_being_written_is_left_for_a_while(tmp_path: Path) -> None:
    rig = Rig(tmp_path)
    text = (tmp_path / "files.toml").read_text().replace("quiet_ms = 0", "quiet_ms = 3600000")
    (tmp_path / "files.toml").write_text(text)
    rig.config = load_source_config(str(tmp_path / "files.toml"))
    rig.write("a", b"1")
    rig.turns(3)
    assert rig.log.rows == []
    os.utime(rig.incoming / "a", (1, 1))
    rig.turns()
    assert rig.log.values() == [b"1"]


def test_a_ledger_that_is_not_the_logs_is_refused(tmp_path: Path) -> None:
    """Proves that nothing is read twice if the ledger is lost, older or newer than the log, or another connector's."""
    rig = Rig(tmp_path)
    ledger = tmp_path / "state" / "f.ledger"
    rig.write("a", b"1")
    rig.turns()
    shutil.copy(ledger, tmp_path / "older")
    rig.write("b", b"2")
    rig.turns()
    shutil.copy(ledger, tmp_path / "newer")
    log, rig.log = rig.log, Log()
    with pytest.raises(WrongDirectory, match="the log has no producer f"):
        rig.turns()
    rig.log = log
    shutil.copy(tmp_path / "older", ledger)
    with pytest.raises(WrongDirectory, match="an older copy"):
        rig.turns()
    ledger.unlink()
    with pytest.raises(WrongDirectory, match="tutti producers forget f"):
        rig.turns()
    ledger.write_bytes(b"rubbish" * 1000)
    with pytest.raises(Damaged, match="not a valid ledger"):
        rig.turns()
    shutil.copy(tmp_path / "newer", ledger)
    rig.turns()
    assert rig.log.values() == [b"1", b"2"]
    rig.configure('format = "lines"\ngrows = true')
    with pytest.raises(ConfigError, match="another `name`"):
        rig.turns()


def test_a_connector_after_a_takeover_writes_nothing_more(tmp_path: Path) -> None:
    """Proves that an older instance is refused by the ledger, too."""
    rig = Rig(tmp_path)
    with rig.session() as (_, old):
        rig.turns()
        rig.write("a", b"1")
        with pytest.raises(Fenced):
            old._scan()
    rig.turns()
    assert rig.log.values() == [b"1"]


def test_progress_of_another_program_is_refused(tmp_path: Path) -> None:
    rig = Rig(tmp_path)
    rig.log.progress = b"17"
    with pytest.raises(FormatError, match="another `name`"):
        rig.turns()


def test_a_frame_that_fails_ends_the_session_and_nothing_is_lost(tmp_path: Path) -> None:
    rig = Rig(tmp_path)
    rig.write("a", b"1\n2")
    rig.log.fail = Aborted("lost its coordinator")
    with pytest.raises(Aborted):
        rig.turns()
    rig.turns()
    assert rig.log.values() == [b"1", b"2"]


def test_a_directory_that_goes_away_is_waited_for(tmp_path: Path) -> None:
    rig = Rig(tmp_path)
    rig.write("a", b"1\n")
    with rig.session() as (_, session):
        shutil.move(rig.incoming, tmp_path / "away")
        with pytest.raises(Unavailable, match="no such file or directory"):
            session._scan()
    with pytest.raises(ConfigError, match="choose a readable directory"):
        Directory(rig.config).check()
    shutil.move(tmp_path / "away", rig.incoming)
    rig.turns()
    assert rig.log.values() == [b"1"]


GOOD = (
    'name = "f"\ngateways = "tutti://h:1"\nstate = "s"\nquarantine = "q"\ntopic = "t"\n[files]\ndirectory = "d"\nformat = "csv"\n'
)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (GOOD.replace('directory = "d"', ""), "files.directory is missing"),
        (GOOD.replace('"csv"', '"xml"'), '"csv" or "jsonl" or "lines" or "parquet"'),
        (GOOD.replace('"t"', '"a b"'), "topic is 'a b'"),
        (GOOD + 'pattern = "x/*"', "the pattern applies to names only"),
        (GOOD + 'after = "move"', "files.done is missing"),
        (GOOD + 'done = "x"', 'write after = "move"'),
        (GOOD + 'grows = true\norder = "time"', "remove order"),
        (GOOD + 'grows = true\nafter = "delete"', "is never complete"),
        (GOOD.replace("csv", "parquet") + "grows = true", "remove grows"),
        (GOOD.replace("csv", "lines") + '[record]\nkey = "a"', '"lines", which has none'),
        (GOOD.replace("csv", "jsonl") + '[csv]\ndelimiter = ";"', "[csv] is set"),
        (GOOD + '[csv]\ndelimiter = "ü"', "one ASCII character"),
        (GOOD + '[csv]\ncolumns = ["a", "a"]', "'a' twice"),
        (GOOD + '[csv]\ncolumns = ["a"]\n[record]\nvalue = "b"', "record.value is 'b', which is not in csv.columns: a"),
        (GOOD + "poll_ms = 1", "it takes 10ms to 1h, as a whole number"),
        (GOOD + "polls = 1", "is not known"),
        (GOOD.replace("[files]", 'directory = "x"\n[files]'), "directory is not known: it belongs in [files]"),
    ],
)
def test_mistakes_in_the_configuration_are_reported(tmp_path: Path, text: str, told: str) -> None:
    file = tmp_path / "files.toml"
    file.write_text(text)
    with pytest.raises(ConfigError) as raised:
        load_source_config(str(file))
    assert told in str(raised.value)


def test_the_example_is_right() -> None:
    path = Path(__file__).parents[4] / "conf" / "connectors" / "files.toml"
    assert load_source_config(str(path)).files.format == "csv"
