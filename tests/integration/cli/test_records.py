"""Tests of `tutti produce`, `tutti tail` and `tutti replay`: each record comes out once, with all its fields."""

from __future__ import annotations

import json
import signal
import subprocess
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pyarrow as pa
import pytest
from pyarrow import parquet

from tests.support.commands import TUTTI, DevGroup, tutti
from tests.support.waiting import wait_until
from tutti.data.frames.columns import COLUMNS, SCHEMA


def test_lines_come_out_as_they_went_in(running: DevGroup) -> None:
    done = tutti("produce", "--topic", "lines", "--json", given=b"one\n\xff\n\nlast", url=running.url)
    assert done.code == 0, done.err
    assert (done.json["records"], done.json["last"] - done.json["first"]) == (4, 3)
    shown = tutti("tail", "--topic", "lines", "--url", running.url)
    assert (shown.code, shown.err) == (0, "")
    records = [json.loads(line) for line in shown.lines]
    assert [list(record) for record in records] == [
        list(COLUMNS),
        [name if name != "value" else "value_base64" for name in COLUMNS],
        list(COLUMNS),
        list(COLUMNS),
    ]
    assert [record.get("value", record.get("value_base64")) for record in records] == ["one", "/w==", "", "last"]
    first = records[0]
    assert (first["topic"], first["key"], first["headers"], first["gateway"], first["sequence"]) == ("lines", None, [], "g1", 1)
    assert first["producer"].startswith("~")
    age = datetime.now(UTC) - datetime.strptime(first["timestamp"], "%Y-%m-%dT%H:%M:%S.%fZ").replace(tzinfo=UTC)
    assert timedelta(0) <= age < timedelta(minutes=2)


def test_first_and_last_offset_are_printed(running: DevGroup) -> None:
    done = tutti("produce", "--topic", "offsets", given=b"a\nb\nc\n", url=running.url)
    words = done.out.split()
    assert words[:2] == ["first", "offset"]
    assert words[3:5] == ["last", "offset"]
    assert int(words[5]) - int(words[2].rstrip(",")) == 2
    assert "3 records committed to offsets" in done.err


def test_json_and_csv_with_keys(running: DevGroup, tmp_path: Path) -> None:
    file = tmp_path / "rows.csv"
    file.write_text('origin,note\nEWR,"a, b"\nJFK,c\n')
    options = ["--topic", "keys", "--key", "origin", "--url", running.url]
    assert tutti("produce", *options, "--format", "csv", str(file)).code == 0
    assert tutti("produce", *options, "--format", "json", given=b'{"origin": "LGA"}\n').code == 0
    records = [json.loads(line) for line in tutti("tail", "--topic", "keys", url=running.url).lines]
    assert [(record["key"], json.loads(record["value"])) for record in records] == [
        ("EWR", {"origin": "EWR", "note": "a, b"}),
        ("JFK", {"origin": "JFK", "note": "c"}),
        ("LGA", {"origin": "LGA"}),
    ]
    chosen = tutti("tail", "--topic", "keys", "--key", "JFK", "--format", "value", url=running.url)
    assert chosen.lines == ['{"origin":"JFK","note":"c"}']


def test_a_second_run_under_a_name_commits_nothing_twice_and_a_changed_input_is_refused(running: DevGroup, tmp_path: Path) -> None:
    file = tmp_path / "input"
    file.write_text("".join(f"record {number}\n" for number in range(1, 2001)))
    options = ["--topic", "once", "--producer", "file-1", "--url", running.url, "--json"]
    first = tutti("produce", *options, str(file)).json
    assert (first["records"], first["skipped"], first["last"] - first["first"]) == (2000, 0, 1999)
    again = tutti("produce", *options, str(file)).json
    assert (again["records"], again["skipped"], again["first"]) == (0, 2000, None)
    with file.open("a") as more:
        more.write("record 2001\n")
    grown = tutti("produce", *options, str(file)).json
    assert (grown["records"], grown["skipped"]) == (1, 2000)
    file.write_text(file.read_text().replace("record 7\n", "record x\n"))
    changed = tutti("produce", *options, str(file))
    assert (changed.code, changed.out) == (1, "")
    assert "does not begin with the 2,001 records that producer 'file-1' has committed" in changed.err
    records = [json.loads(line) for line in tutti("tail", "--topic", "once", url=running.url).lines]
    assert [record["value"] for record in records] == [f"record {number}" for number in range(1, 2002)]
    assert [record["sequence"] for record in records] == list(range(1, 2002))
    assert {record["producer"] for record in records} == {"file-1"}


def test_a_part_is_chosen_by_start_end_count_and_last(running: DevGroup) -> None:
    done = tutti("produce", "--topic", "range", "--json", given=b"".join(b"%d\n" % n for n in range(100)), url=running.url)
    first = done.json["first"]
    tutti("produce", "--topic", "other", given=b"x\ny\n", url=running.url)

    def shown(*options: str) -> list[str]:
        done = tutti("tail", "--topic", "range", "--format", "value", *options, url=running.url)
        assert done.code == 0, done.err
        return done.lines

    assert shown("--start", str(first + 10), "--end", str(first + 13)) == ["10", "11", "12"]
    assert shown("-n", "2") == ["0", "1"]
    assert shown("-n", "0") == []
    assert shown("--last", "3") == ["97", "98", "99"]
    assert shown("--last", "3", "-n", "1") == ["97"]
    assert shown("--last", "1000000") == [str(n) for n in range(100)]
    assert shown("--last", "2", "--end", str(first + 50)) == ["48", "49"]
    assert shown("--start", "1999-01-01T00:00:00Z", "-n", "1") == ["0"]
    assert shown("--start", "latest") == []
    raw = tutti("tail", "--topic", "range", "--format", "raw", "-n", "12", url=running.url)
    assert raw.out == "01234567891011"


@pytest.mark.parametrize(
    ("options", "code", "message"),
    [
        (["--start", "99999999"], 2, "error: "),
        (["--start", "-1"], 2, "error: "),
        (["--start", "soon"], 2, "'soon' is not a position"),
        (["--start", "2026-01-01T00:00:00"], 2, "has no zone"),
        (["--last", "3", "--start", "0"], 2, "--last and --start both set the start"),
    ],
)
def test_a_wrong_range_is_one_sentence(running: DevGroup, options: list[str], code: int, message: str) -> None:
    done = tutti("tail", *options, url=running.url)
    assert (done.code, done.out) == (code, "")
    assert message in done.err
    assert done.err.count("\n") == 1


def test_follow_prints_commits_until_it_is_interrupted(running: DevGroup) -> None:
    tutti("produce", "--topic", "live", given=b"before\n", url=running.url)
    missing = tutti("tail", "--topic", "lvie", "--last", "1", url=running.url)
    assert (missing.code, missing.out) == (2, "")
    assert "'lvie'" in missing.err
    command = [*TUTTI, "tail", "--topic", "live", "--format", "value", "--follow", "--last", "1", "--url", running.url]
    follower = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        assert follower.stdout is not None
        assert follower.stdout.readline() == "before\n"
        for number in range(3):
            tutti("produce", "--topic", "live", given=b"live %d\n" % number, url=running.url)
            assert follower.stdout.readline() == f"live {number}\n"
        follower.send_signal(signal.SIGINT)
        out, err = follower.communicate(timeout=20)
        assert (follower.returncode, out, err) == (0, "", "")
    finally:
        follower.kill()
        follower.communicate()


def test_follow_names_the_missing_topic_and_continues(running: DevGroup) -> None:
    tutti("produce", "--topic", "there", given=b"before\n", url=running.url)
    command = [*TUTTI, "tail", "--topic", "there", "--topic", "soon", "--format", "value", "--follow", "--url", running.url]
    follower = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        assert follower.stdout is not None
        assert follower.stderr is not None
        said = follower.stderr.readline()
        assert said.startswith("waiting for topic soon, which is not in the log yet; the log has ")
        assert "there" in said
        assert tutti("produce", "--topic", "soon", given=b"come\n", url=running.url).code == 0
        assert follower.stdout.readline() == "come\n"
        follower.send_signal(signal.SIGINT)
        out, err = follower.communicate(timeout=20)
        assert (follower.returncode, out, err) == (0, "", "")
    finally:
        follower.kill()
        follower.communicate()


def test_a_rate_and_a_live_pipe(running: DevGroup) -> None:
    command = [*TUTTI, "produce", "--topic", "pipe", "--url", running.url]
    feeding = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    try:
        assert feeding.stdin is not None
        feeding.stdin.write(b"first\n")
        feeding.stdin.flush()
        wait_until(lambda: tutti("tail", "--topic", "pipe", "--format", "value", url=running.url).lines == ["first"])
        out, _ = feeding.communicate(b"second", timeout=20)
        assert feeding.returncode == 0
        assert out.startswith(b"first offset ")
    finally:
        feeding.kill()
        feeding.communicate()
    done = tutti("produce", "--topic", "paced", "--rate", "200", "--json", given=b"x\n" * 100, url=running.url)
    assert done.json["seconds"] >= 0.45


@pytest.mark.parametrize("kind", ["parquet", "arrow", "jsonl"])
def test_a_replay_holds_the_same_records_whether_the_gateway_is_asked_or_its_files(
    running: DevGroup, tmp_path: Path, kind: str
) -> None:
    done = tutti("produce", "--topic", f"r-{kind}", "--json", given=b"".join(b"%d\n" % n for n in range(5000)), url=running.url)
    place = ["--start", str(done.json["first"]), "--end", str(done.json["last"] + 1)]
    outs = [tmp_path / f"url.{kind}", tmp_path / f"path.{kind.upper()}"]
    for out, source in zip(outs, (["--url", running.url], ["--path", str(running.data)]), strict=True):
        replayed = tutti("replay", *source, *place, "--out", str(out), "--json")
        assert replayed.code == 0, replayed.err
        assert (replayed.json["records"], replayed.json["start"], replayed.json["end"]) == (
            5000,
            done.json["first"],
            done.json["last"] + 1,
        )
    if kind == "jsonl":
        lines = outs[0].read_text().splitlines()
        assert [json.loads(line)["value"] for line in lines] == [str(n) for n in range(5000)]
        assert outs[0].read_bytes() == outs[1].read_bytes()
        return
    tables = [parquet.read_table(out) if kind == "parquet" else pa.ipc.open_file(str(out)).read_all() for out in outs]
    assert tables[0].equals(tables[1])
    assert tables[0].schema.equals(SCHEMA)
    assert tables[0]["value"].to_pylist() == [b"%d" % n for n in range(5000)]
    assert sorted(file.name for file in tmp_path.iterdir()) == sorted(out.name for out in outs)


@pytest.mark.parametrize(
    ("options", "code", "message"),
    [
        (["--out", "x.csv"], 2, "--out x.csv: the name must end in one of .parquet, .jsonl, .arrow"),
        (["--out", "no/such/dir/x.jsonl"], 2, "the directory no/such/dir does not exist; create it"),
        (["--out", "x.jsonl", "--path", "."], 2, "--url and --path are both sources: give one of them"),
        (["--out", "x.jsonl", "--start", "5", "--end", "3"], 2, "error: "),
        (["--out", "x.jsonl", "--end", "9999999"], 2, "error: "),
    ],
)
def test_a_wrong_replay_is_one_sentence_and_leaves_no_file(
    running: DevGroup, tmp_path: Path, options: list[str], code: int, message: str
) -> None:
    arguments = [part if part != "x.jsonl" else str(tmp_path / part) for part in options]
    done = tutti("replay", "--url", running.url, *arguments)
    assert (done.code, done.out) == (code, "")
    assert message in done.err
    assert done.err.count("\n") == 1
    assert list(tmp_path.iterdir()) == []
