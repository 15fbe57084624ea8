"""Unordered records go in by `tutti produce --unordered` and come out by `tutti tail --unordered`; no other command shows them."""

from __future__ import annotations

import json

from gateway.data.columns import COLUMNS
from tests.integration.cli.house import House, tutti


def test_lines_come_out_of_the_lane_as_they_went_in(running: House) -> None:
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


def test_one_lane_has_offsets(running: House) -> None:
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


def test_options_that_do_not_go_together_are_told(running: House) -> None:
    for said, command in (
        ("give --unordered, too", ["tail", "--origin", "g1"]),
        ("name it with --origin", ["tail", "--unordered", "--start", "5"]),
        ("--last counts the records of one lane: name it", ["tail", "--unordered", "--last", "5"]),
        ("there is no lane of origin 'g9'", ["tail", "--unordered", "--origin", "g9"]),
        ("leave it out, or --unordered", ["produce", "--topic", "t", "--unordered", "--producer", "p"]),
    ):
        done = tutti(*command, given=b"x\n", url=running.url)
        assert done.code == 2, done
        assert said in done.err
