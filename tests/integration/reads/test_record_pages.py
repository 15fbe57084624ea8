"""Tests of pages of records: they are correct forward and backward, and each scans a bounded part of the log."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from tests.support.reads_process import TIME, LogMaker, value
from tutti.log.read.reader import LogReader
from tutti_gateway.core import limits
from tutti_gateway.reads.admin.record_pages import RecordBrowser

ROWS = [7, 1, 300, 12, 2, 5000, 40, 3]
TOPICS = ["flights", "weather", "flights", "rare", "flights", "weather", "flights", "rare"]


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LogReader]:
    maker = LogMaker(tmp_path_factory.mktemp("log"))
    for _ in range(3):
        for topic, rows in zip(TOPICS, ROWS, strict=True):
            maker.add(topic, rows)
    reader = LogReader(maker.path)
    yield reader
    reader.close()
    maker.close()


def page(log: LogReader, **asked: object) -> tuple[list[dict[str, Any]], dict[str, int]]:
    status, media_type, body, headers = RecordBrowser(log).records({name: str(text) for name, text in asked.items()})
    assert (status, media_type) == (200, "application/x-ndjson"), body
    return [json.loads(line) for line in body.splitlines()], {name: int(text) for name, text in headers.items()}


def of_topics(topic: str | None) -> list[int]:
    """Offsets of all records of a topic."""
    found: list[int] = []
    offset = 0
    for name, rows in list(zip(TOPICS, ROWS, strict=True)) * 3:
        found += range(offset, offset + rows) if topic in (None, name) else []
        offset += rows
    return found


@pytest.mark.parametrize("limit", [1, pytest.param(7, marks=pytest.mark.soak), 200])
@pytest.mark.parametrize("topic", [None, "flights", "rare"])
def test_pages_forward_and_back_hold_every_record_once(
    log: LogReader, topic: str | None, limit: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "BROWSE_BYTES_MAX", 200_000)
    chosen = {} if topic is None else {"topic": topic}
    expected = of_topics(topic)
    if limit == 1:  # one page for each record: some of them are enough
        expected = expected[:30]
    start: int | None = 0
    found: list[int] = []
    while start is not None and len(found) < len(expected):
        lines, about = page(log, start=start, limit=limit, **chosen)
        assert len(lines) <= limit
        assert about["tutti-first"] == start < about["tutti-next"]
        found += [line["offset"] for line in lines]
        start = about["tutti-next"]
    assert found[: len(expected)] == expected
    before: int = about["tutti-next"]
    back: list[int] = []
    while before > 0:
        lines, about = page(log, before=before, limit=limit, **chosen)
        assert len(lines) <= limit
        assert about["tutti-next"] == before > about["tutti-first"]
        back = [line["offset"] for line in lines] + back
        before = about["tutti-first"]
    assert back == found


def test_the_page_without_an_offset_is_the_newest(log: LogReader) -> None:
    lines, about = page(log, limit=3)
    frontier = log.frontier().offset
    assert [line["offset"] for line in lines] == [frontier - 3, frontier - 2, frontier - 1]
    assert (about["tutti-first"], about["tutti-next"], about["tutti-start"]) == (frontier - 3, frontier, 0)
    assert lines[0]["value"] == value(frontier - 3).decode()
    assert page(log, start="latest", limit=3) == (lines, about)


def test_a_key_is_found_and_a_time(log: LogReader) -> None:
    lines, about = page(log, start="earliest", key="k4000")
    assert [line["offset"] for line in lines] == [4000]
    lines, _ = page(log, key_base64="azQwMDA=", before=4001)
    assert [line["offset"] for line in lines] == [4000]
    assert about["tutti-next"] > 4000
    lines, _ = page(log, time="2023-11-14T22:13:21Z", limit=1)
    assert lines[0]["offset"] == (1_700_000_001_000_000 - TIME) // 1000


def test_an_absent_key_costs_a_bounded_search(log: LogReader, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "BROWSE_BYTES_MAX", 100_000)
    lines, about = page(log, start=0, key="nowhere")
    assert lines == []
    assert 0 < about["tutti-next"] < log.frontier().offset
    lines, about = page(log, topic="nothing")
    assert (lines, about["tutti-first"]) == ([], 0)  # the index alone was asked


def test_long_values_are_truncated(log: LogReader) -> None:
    lines, _ = page(log, start=1, limit=1, cut=9)
    assert (lines[0]["value"], lines[0]["value_bytes"]) == ("000000001", 100)


@pytest.mark.parametrize(
    ("asked", "status", "told"),
    [
        ({"begin": "1"}, 400, "no parameter 'begin'"),
        ({"start": "1", "before": "2"}, 400, "start and before"),
        ({"start": "-1"}, 400, "not '-1'"),
        ({"start": "²"}, 400, "whole number"),
        ({"start": "9" * 400}, 400, "whole number"),
        ({"start": "99999999"}, 400, "is not between 0 and"),
        ({"limit": "0"}, 400, "limit=0"),
        ({"limit": "201"}, 400, "limit=201"),
        ({"limit": "200", "cut": "200000"}, 400, "cut=200000"),
        ({"time": "yesterday"}, 400, "ISO 8601"),
        ({"time": "2023-11-14T22:13:21"}, 400, "no zone"),
        ({"key": "a", "key_base64": "a"}, 400, "give only one"),
        ({"key_base64": "%%"}, 400, "base64"),
    ],
)
def test_wrong_requests_get_an_error_that_names_the_mistake(log: LogReader, asked: dict[str, str], status: int, told: str) -> None:
    found, _, body, _ = RecordBrowser(log).records(asked)
    assert found == status
    assert told in json.loads(body)["message"]


def test_one_request_too_many_waits_and_gets_an_error(log: LogReader, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "BROWSE_WAIT_US_MAX", 1000)
    browser = RecordBrowser(log)
    leases = [browser.slots.acquire() for _ in range(limits.BROWSERS_MAX)]
    assert browser.records({})[0] == 503
    leases.pop().release()
    assert browser.records({})[0] == 200


class Uneven:
    """A log whose newest batches have many records each, all others one: no width that did before says what is looked at next."""

    start = 0
    singles, large, batch = 3_000_000, 1 << 29, 16_384

    def __init__(self) -> None:
        self.rows = 0

    def frontier(self) -> Any:
        return SimpleNamespace(offset=self.singles + self.large)

    def offset_for_time(self, _time_us: int) -> int:
        return 0

    def picking(self, _topics: list[str]) -> Callable[[Any], Any]:
        return lambda rows: rows[rows["topic"] == 9]

    def batches(self, start: int, end: int) -> Iterator[tuple[None, Any]]:
        while start < end:
            each = 1 if start < self.singles else self.batch
            count = max(1, min(100_000, (min(end, self.singles if each == 1 else end) - start) // each))
            rows = np.zeros(count, [("offset", np.int64), ("count", np.int64), ("topic", np.uint32), ("size", np.int64)])
            rows["offset"], rows["count"], rows["size"] = start + np.arange(count) * each, each, 100
            self.rows += count
            start += count * each
            yield None, rows


def test_a_page_of_a_rare_topic_scans_a_bounded_part_of_the_index_and_advances() -> None:
    log: Any = Uneven()
    before = log.frontier().offset
    while before > Uneven.singles - 100_000:
        log.rows = 0
        status, _, _, headers = RecordBrowser(log).records({"topic": "rare", "before": str(before)})
        assert status == 200
        assert int(headers["tutti-first"]) < before
        assert log.rows <= limits.BROWSE_ROWS_MAX + limits.BROWSE_STEP_ROWS_MAX + 100_000
        before = int(headers["tutti-first"])
