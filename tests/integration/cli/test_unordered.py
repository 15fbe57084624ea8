"""Tests of `tutti produce --unordered` and `tutti tail --unordered`: unordered records are shown there, and by no other command."""

from __future__ import annotations

import json
from pathlib import Path

from tests.support.commands import DevGroup, tutti
from tutti import Producer
from tutti.data.frames.columns import COLUMNS


def test_lines_come_out_of_the_lane_as_they_went_in(running: DevGroup) -> None:
    options = ["--topic", "side", "--url", running.url]
    before = tutti("tail", "--unordered", "--json-is-no-option", url=running.url)
    assert before.code == 2
    ordered = tutti("produce", *options, "--json", given=b"ordered\n").json
    done = tutti("produce", *options, "--unordered", "--json", given=b"one\n\xff\nlast\n")
    assert done.code == 0, done.err
    (lane,) = done.json["lanes"]
    first, last = done.json["lanes"][lane]
    assert (done.json["records"], last - first, done.json["first"]) == (3, 2, None)
    assert "lanes" not in ordered
    shown = tutti("tail", "--unordered", "--topic", "side", url=running.url)
    assert (shown.code, shown.err) == (0, "")
    records = [json.loads(line) for line in shown.lines]
    assert list(records[0]) == list(COLUMNS)
    assert [record["offset"] for record in records] == [first, first + 1, last]
    assert [record.get("value", record.get("value_base64")) for record in records] == ["one", "/w==", "last"]
    assert {(record["gateway"], record["topic"], record["tick"]) for record in records} == {("g1", "side", 0)}
    assert tutti("tail", "--topic", "side", "--format", "value", url=running.url).lines == ["ordered"]


def test_one_lane_has_offsets(running: DevGroup) -> None:
    done = tutti(
        "produce", "--topic", "cut", "--unordered", given=b"".join(b"%d\n" % number for number in range(20)), url=running.url
    )
    word, lane, *words = done.lines[0].split()
    assert (word, words[:2]) == ("lane", ["first", "offset"])
    first = int(words[2].rstrip(","))
    options = ["--unordered", "--topic", "cut", "--format", "value", "--url", running.url]
    for origin in ("g1", lane.rstrip(":")):
        assert tutti("tail", *options, "--origin", origin, "--last", "3").lines == ["17", "18", "19"]
        shown = tutti("tail", *options, "--origin", origin, "--start", str(first + 5), "--end", str(first + 8))
        assert shown.lines == ["5", "6", "7"]
    assert tutti("tail", *options, "--follow", "--start", "earliest", "-n", "2").lines == ["0", "1"]


def test_replay_from_a_lane_directory_is_refused(running: DevGroup, tmp_path: Path) -> None:
    given = tutti("produce", "--topic", "lane", "--unordered", "--json", given=b"x\n" * 50, url=running.url)
    (lane,) = given.json["lanes"]
    done = tutti("replay", "--path", str(running.data / "lanes" / lane), "--out", str(tmp_path / "out.jsonl"))
    assert (done.code, list(tmp_path.iterdir())) == (2, [])
    assert f"--origin {lane}" in done.err


def test_an_unknown_topic_is_an_error_although_the_range_is_empty(running: DevGroup) -> None:
    tutti("produce", "--topic", "there", "--unordered", given=b"x\n", url=running.url)
    for options in ([], ["--unordered"], ["--unordered", "--origin", "g1"]):
        done = tutti("tail", "--topic", "theer", "--start", "latest", *options, url=running.url)
        assert (done.code, "did you mean 'there'" in done.err) == (2, True), done
        done = tutti("tail", "--topic", "there", "--start", "latest", *options, url=running.url)
        assert (done.code, done.out, done.err) == (0, "", "")


def test_topics_and_producers_count_the_ordered_log_alone(running: DevGroup) -> None:
    with Producer(running.url, producer="beside") as producer:
        producer.send("beside", b"x", ordering="unordered")
        assert producer.flush(60) == 0
    (found,) = [one for one in tutti("producers", "--json", url=running.url).json if one["name"] == "beside"]
    assert (found["epoch"], found["sequence"]) == (1, 0)
    (topic,) = [topic for topic in tutti("topics", "--json", url=running.url).json if topic["name"] == "beside"]
    assert (topic["records"], topic["first_offset"]) == (0, None)
    for command in (["topics", "list"], ["producers", "list"]):
        assert "the ordered log only" in " ".join(tutti(*command, "--help").out.split())


def test_conflicting_options_are_an_error(running: DevGroup) -> None:
    for said, command in (
        ("needs --unordered: give both", ["tail", "--origin", "g1"]),
        ("select a lane with --origin", ["tail", "--unordered", "--start", "5"]),
        ("--last applies to one lane: select a lane", ["tail", "--unordered", "--last", "5"]),
        ("origin 'g9' has no lane", ["tail", "--unordered", "--origin", "g9"]),
        ("omit --producer or --unordered", ["produce", "--topic", "t", "--unordered", "--producer", "p"]),
    ):
        done = tutti(*command, given=b"x\n", url=running.url)
        assert done.code == 2, done
        assert said in done.err
