"""Proves that a reader goes on when the log was trimmed past what it had looked at."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.unit.log.history import sample, trimmed, write_log
from tutti.log.read.reader import LogReader


def test_a_trim_beyond_what_a_reader_had_looked_at_takes_no_state_and_no_name_from_it(tmp_path: Path) -> None:
    history = sample(20, size=1500)
    write_log(tmp_path, history)
    reader = LogReader(tmp_path)
    before = reader.state().position
    assert "early" not in {topic.name for topic in reader.topics()}
    assert not reader.topic_numbers(["early"])
    history.batch("first", "early", [b"x"])
    for _ in range(160):
        history.batch("a", "t", [b"x" * 900])
    position, _ = trimmed(tmp_path, history)
    assert before < position - 1
    fresh = LogReader(tmp_path)
    assert reader.topic_numbers(["early", "late"]) == fresh.topic_numbers(["early", "late"])
    assert len(reader.topic_numbers(["early", "late"])) == 2
    assert reader.topics() == fresh.topics()
    assert reader.state().to_bytes() == fresh.state().to_bytes()


def test_a_trim_while_a_reader_works_its_state_out_is_no_error_of_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    history = sample(20, size=1500)
    write_log(tmp_path, history)
    reader = LogReader(tmp_path)
    reader.state()
    for _ in range(160):
        history.batch("a", "t", [b"x" * 900])
    walk = reader.positions
    left = [0]

    def overtaken(start: int, last: int) -> object:
        if left:
            left.pop()
            trimmed(tmp_path, history)
        return walk(start, last)

    write_log(tmp_path, history)
    monkeypatch.setattr(reader, "positions", overtaken)
    assert reader.state().to_bytes() == LogReader(tmp_path).state().to_bytes()
    assert not left
