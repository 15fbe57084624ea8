"""Tests of `tutti trace`: it finds one message in the logs of all gateways, by producer, sequence and epoch, or by offset."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import orjson
import pytest

from tutti_gateway.cli.main import main

BATCH: dict[str, object] = {"producer": "jfk", "number": 7, "epoch": 1, "first": 4, "last": 6, "kind": "BATCH", "topic": "t"}
PLACED = {**BATCH, "position": 9, "in_view": "1.1", "origin": 2}
OTHER = {**BATCH, "first": 7, "last": 9, "position": 10, "in_view": "1.1"}


def line(at_ms: int, gateway: str, event: str, fields: dict[str, object]) -> str:
    return json.dumps(
        {"gateway": gateway, "event": event, "level": "debug", "timestamp": f"2026-01-31T12:00:00.{at_ms:03}000Z", **fields}
    )


G1 = [
    "a traceback, or a line for people",
    line(1, "g1", "vote", {"sender": 2, "up_to": 9}),  # of a position 9 that was cut: before the message came
    line(2, "g1", "received", {**BATCH, "by": "Forward", "sender": 2}),
    line(3, "g1", "written", PLACED),
    line(4, "g1", "written", OTHER),
    line(5, "g1", "vote", {"sender": 2, "up_to": 8}),
    line(6, "g1", "vote", {"sender": 2, "up_to": 10}),
    line(7, "g1", "vote", {"sender": 2, "up_to": 11}),
    line(8, "g1", "decided", {**PLACED, "offset": 20}),
    line(9, "g1", "decided", {**OTHER, "offset": 23}),
    json.dumps({"event": "reads are served", "level": "info", "timestamp": "2026-01-31T12:00:00Z", "process": "reads"}),
]
G2 = [
    line(0, "g2", "submitted", {**BATCH, "session": 3}),
    line(9, "g2", "confirm", {"sender": 1, "up_to": 9}),
    line(10, "g2", "receipt", {**BATCH, "offset": 20, "session": 3}),
]
WHOLE = [
    ("g2", "submitted"),
    ("g1", "received"),
    ("g1", "written"),
    ("g1", "vote"),
    ("g1", "decided"),
    ("g2", "confirm"),
    ("g2", "receipt"),
]


class Said(NamedTuple):
    code: int
    out: str
    err: str


@pytest.fixture
def trace(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Callable[..., Said]:
    files = []
    for name, lines in (("g1", G1), ("g2", G2)):
        files.append(tmp_path / f"{name}.log")
        files[-1].write_text("\n".join(lines) + "\n")

    def run(*options: str) -> Said:
        code = main(["trace", *map(str, files), *options])
        captured = capsys.readouterr()
        return Said(code, captured.out, captured.err)

    return run


@pytest.mark.parametrize("options", [("--producer", "jfk", "--sequence", "5"), ("--offset", "22")])
def test_a_message_is_followed_by_name_and_by_offset(trace: Callable[..., Said], options: tuple[str, ...]) -> None:
    done = trace(*options, "--json")
    found = [json.loads(text) for text in done.out.splitlines()]
    assert (done.code, done.err) == (0, "")
    assert [(one["gateway"], one["event"]) for one in found] == WHOLE
    assert next(one["up_to"] for one in found if one["event"] == "vote") == 10


def test_people_get_a_table_of_milliseconds(trace: Callable[..., Said]) -> None:
    title, header, *rows = trace("--offset", "20").out.splitlines()
    assert title == "message jfk, epoch 1, sequences 4 to 6, from 2026-01-31T12:00:00.000000Z"
    assert header.split("\t") == ["ms", "gateway", "what", "details"]
    assert rows[0].split("\t") == ["0.000", "g2", "submitted", "topic=t session=3"]
    assert rows[3].split("\t") == ["6.000", "g1", "vote", "sender=2 up_to=10"]
    assert len(rows) == len(WHOLE)


AGAIN = {**PLACED, "epoch": 2, "first": 5, "last": 5, "position": 12}
ABORTED_AND_GIVEN_AGAIN = [
    line(0, "g1", "received", {**BATCH, "producer": "", "by": "Forward", "sender": 2}),  # its EPOCH is not decided here yet
    line(1, "g1", "written", PLACED),
    line(2, "g1", "no", {"sender": 3, "position": 8, "reason": "about another one"}),
    line(3, "g1", "no", {"sender": 3, "position": 9, "reason": "no space"}),
    line(4, "g1", "aborted", PLACED),
    line(5, "g1", "written", AGAIN),
    line(6, "g1", "vote", {"sender": 3, "up_to": 12}),
    line(7, "g1", "decided", {**AGAIN, "offset": 20}),
    line(8, "g1", "written", {**AGAIN, "number": 8, "producer": "other", "position": 13}),
]
FIRST = [("received", 1), ("written", 1), ("no", 1), ("aborted", 1), ("vote", 1)]
SECOND = [("written", 2), ("vote", 2), ("decided", 2)]


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (("--producer", "jfk", "--sequence", "5"), FIRST + SECOND),
        (("--producer", "jfk", "--sequence", "5", "--epoch", "1"), FIRST),
        (("--producer", "jfk", "--sequence", "5", "--epoch", "2"), SECOND),
        (("--offset", "20"), SECOND),
    ],
)
def test_an_aborted_and_reused_sequence_is_one_message_for_each_epoch(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], options: tuple[str, ...], told: list[tuple[str, int]]
) -> None:
    file = tmp_path / "g1.log"
    file.write_text("\n".join(ABORTED_AND_GIVEN_AGAIN) + "\n")
    assert main(["trace", str(file), *options, "--json"]) == 0
    found = [json.loads(text) for text in capsys.readouterr().out.splitlines()]
    assert [(one["event"], one["epoch"]) for one in found] == told
    assert [one["reason"] for one in found if one["event"] == "no"] == ["no space"] * (FIRST[0] in told)
    assert main(["trace", str(file), *options]) == 0
    titles = [text for text in capsys.readouterr().out.splitlines() if text.startswith("message ")]
    assert [title.split(", from")[0] for title in titles] == [
        f"message jfk, epoch {epoch}, {sequences}"
        for epoch, sequences in ((1, "sequences 4 to 6"), (2, "sequence 5"))
        if any(one == epoch for _, one in told)
    ]


@pytest.mark.parametrize(
    ("options", "code", "said"),
    [
        (("--offset", "26"), 1, "error: offset 26 is in none of these logs: check that they were written at level debug"),
        (("--producer", "lga", "--sequence", "5"), 1, "error: message 5 of producer lga is in none of these logs"),
        (("--producer", "jfk", "--sequence", "5", "--epoch", "3"), 1, "error: message 5 of producer jfk in epoch 3 is in none of"),
        (("--offset", "20", "--epoch", "1"), 2, "error: --epoch needs --producer and --sequence\n"),
        ((), 2, "error: the record to trace is not clear: give either --producer and --sequence, or --offset\n"),
        (("--producer", "jfk"), 2, "error: the record to trace is not clear: give either --producer and --sequence, or --offset\n"),
        (("--producer", "jfk", "--sequence", "5", "--offset", "1"), 2, "error: the record to trace is not clear"),
    ],
)
def test_a_missing_message_or_argument_is_reported(
    trace: Callable[..., Said], options: tuple[str, ...], code: int, said: str
) -> None:
    done = trace(*options)
    assert (done.code, done.out, done.err.count("\n")) == (code, "", 1)
    assert done.err.startswith(said)


@pytest.mark.parametrize("options", [("--offset", "26"), ("--producer", "lga", "--sequence", "5")])
def test_a_search_for_an_unordered_record_prints_the_right_options(trace: Callable[..., Said], options: tuple[str, ...]) -> None:
    told = trace(*options)
    assert (told.code, told.err.count("For an unordered record, give --lane")) == (1, 1)
    told = trace(*options, "--lane", "g1")
    assert (told.code, told.err.count("in lane g1 is in none of these logs"), "--lane" in told.err) == (1, 1, False)


LANE, ELSEWHERE = f"1-{'a' * 32}", f"2-{'b' * 32}"
IN_LANE = {**BATCH, "lane": LANE}
AT_FIRST = {**IN_LANE, "position": 9, "attempt": 1, "origin": 1}
AT_LAST = {**IN_LANE, "position": 4, "attempt": 2, "origin": 1}
BESIDE = [
    line(0, "g1", "submitted", {**IN_LANE, "session": 3}),
    line(0, "g1", "submitted", {**BATCH, "session": 4}),  # the same name in the log
    line(0, "g2", "submitted", {**IN_LANE, "lane": ELSEWHERE, "session": 5}),  # and in another lane
    line(1, "g2", "received", {**AT_FIRST, "by": "Post", "sender": 1}),
    line(2, "g2", "received", {**AT_LAST, "by": "Post", "sender": 1}),
    line(3, "g2", "written", AT_LAST),
    line(4, "g2", "durable", {"up_to": 9, "lane": LANE, "attempt": 1}),  # of the attempt that had ended
    line(5, "g2", "durable", {"up_to": 4, "lane": ELSEWHERE, "attempt": 2}),
    line(5, "g2", "durable", {"up_to": 12}),  # of the log
    line(6, "g2", "durable", {"up_to": 5, "lane": LANE, "attempt": 2}),
    line(7, "g1", "vote", {"sender": 2, "up_to": 5, "lane": LANE, "attempt": 2}),
    line(8, "g1", "written", AT_LAST),
    line(9, "g1", "decided", {**AT_LAST, "offset": 20}),
    line(9, "g2", "decided", {**AT_LAST, "lane": ELSEWHERE, "offset": 20}),
    line(10, "g1", "receipt", {**IN_LANE, "offset": 20, "session": 3}),
    line(11, "g2", "confirm", {"sender": 1, "up_to": 4, "lane": LANE, "attempt": 2}),
]
OF_LANE = [
    ("g1", "submitted"),
    ("g2", "received"),
    ("g2", "received"),
    ("g2", "written"),
    ("g2", "durable"),
    ("g1", "vote"),
    ("g1", "written"),
    ("g1", "decided"),
    ("g1", "receipt"),
    ("g2", "confirm"),
]


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (("--producer", "jfk", "--sequence", "5", "--lane", LANE), OF_LANE),
        (("--offset", "21", "--lane", LANE), OF_LANE),
        (("--producer", "jfk", "--sequence", "5", "--lane", "g1"), OF_LANE),
        (("--offset", "21", "--lane", "g1"), OF_LANE),
        (("--producer", "jfk", "--sequence", "5"), [("g1", "submitted")]),
        (("--producer", "jfk", "--sequence", "5", "--lane", ELSEWHERE), [("g2", "submitted"), ("g2", "decided")]),
    ],
)
def test_an_unordered_message_is_followed_in_its_lane_alone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], options: tuple[str, ...], told: list[tuple[str, str]]
) -> None:
    file = tmp_path / "all.log"
    file.write_text("\n".join(BESIDE) + "\n")
    assert main(["trace", str(file), *options, "--json"]) == 0
    found = [json.loads(text) for text in capsys.readouterr().out.splitlines()]
    assert [(one["gateway"], one["event"]) for one in found] == told
    assert {one.get("lane") for one in found} == {found[0].get("lane")}
    assert [one["up_to"] for one in found if one["event"] == "durable"] == [5] * (told is OF_LANE)
    assert main(["trace", str(file), *options]) == 0
    title = capsys.readouterr().out.splitlines()[0]
    assert (f"in lane {found[0].get('lane')}, from" in title) is ("lane" in found[0])


@pytest.mark.parametrize(
    ("lane", "told"),
    [
        (
            "g1",
            [
                "own log, and these are logs of g2: add g1's log of that time, or give the full name of the lane",
                LANE,
                ELSEWHERE,
            ],
        ),
        ("g2", ["needs that gateway's own log: add g2's log of that time, or give the full name of the lane", LANE, ELSEWHERE]),
        (f"3-{'c' * 32}", ["No line belongs to that lane: these logs name the lanes", LANE, ELSEWHERE]),
        (ELSEWHERE, ["cover the time of the record.\n"]),
    ],
)
def test_a_missing_log_of_the_lanes_gateway_is_requested(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], lane: str, told: list[str]
) -> None:
    """The record is there, under the lane's name: by its gateway's it is found in the gateway's own log alone."""
    file = tmp_path / "g2.log"
    file.write_text("\n".join(text for text in BESIDE if json.loads(text)["gateway"] == "g2") + "\n")
    assert main(["trace", str(file), "--producer", "jfk", "--sequence", "5", "--lane", LANE]) == 0
    capsys.readouterr()
    sequence = "5" if lane == "g1" else "30"
    assert main(["trace", str(file), "--producer", "jfk", "--sequence", sequence, "--lane", lane]) == 1
    error = capsys.readouterr().err
    assert (error.count("\n"), [text for text in told if text not in error]) == (1, [])


def test_a_lane_without_any_log_line_is_reported(trace: Callable[..., Said]) -> None:
    error = trace("--offset", "2", "--lane", "g3").err
    assert (
        "these are logs of g1, g2: add g3's log of that time, or give the full name of the lane; these logs name no lane" in error
    )


def test_a_file_without_lines_is_read_in_parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Proves that memory is bounded: a line longer than any log line is read in parts, and passed over."""
    monkeypatch.setattr("tutti_gateway.cli.group.trace._LINE_BYTES_MAX", 1000)
    parts: list[int] = []
    decode = orjson.loads

    def counting(text: bytes) -> object:
        parts.append(len(text))
        return decode(text)

    monkeypatch.setattr("orjson.loads", counting)
    (tmp_path / "zeros").write_bytes(b"\0" * 10_000)
    assert main(["trace", "--offset", "20", str(tmp_path / "zeros")]) == 1
    assert max(parts) == 1000


def test_a_pipe_is_refused_as_it_could_be_read_once_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    os.mkfifo(tmp_path / "fifo")
    assert main(["trace", "--offset", "20", str(tmp_path / "fifo")]) == 2
    assert "fifo is not a regular file" in capsys.readouterr().err
