"""Tests of the sink's decision from its producer's last progress: first write, repeat, another write, or outdated driver."""

from __future__ import annotations

from typing import Any

import orjson
import pytest

from tutti.batching.encoder import check_progress
from tutti.data.names import NAME_BYTES_MAX
from tutti.errors import Fenced, Refused
from tutti_spark.sink.options import WRITE_ID_MAX
from tutti_spark.sink.repeated_writes import Write, digests, find_committed


def test_a_write_is_known_again_whatever_order_its_tasks_ended_in() -> None:
    """Proves what tells one write from another: topics, records of each, and bytes of each, and nothing else."""
    known = digests({"a": 5, "b": 1}, {"a": 50, "b": 5})
    assert known == digests({"b": 1, "a": 5}, {"b": 5, "a": 50})
    topics, counts, sizes = (
        [one == other for one, other in zip(known, digests(*what), strict=True)]
        for what in (({"a": 6}, {"a": 55}), ({"a": 4, "b": 2}, {"a": 50, "b": 5}), ({"a": 5, "b": 1}, {"a": 51, "b": 5}))
    )
    assert (topics, counts, sizes) == ([False] * 3, [True, False, False], [True, True, False])


def write(batch: int = 5, **others: Any) -> Write:
    first: dict[str, Any] = {"stream": False, "named": False, "run": "r1", "at": 7, "records": 3}
    return Write("spark-q", batch, **(first | {"topics": "t", "counts": "c", "digest": "d"} | others))


STREAM: dict[str, Any] = {"stream": True, "run": ""}
BATCH: dict[str, Any] = {"named": True, "run": ""}
OTHER: dict[str, Any] = {"records": 4, "topics": "T", "counts": "C", "digest": "D"}


@pytest.mark.parametrize(
    ("last", "wanted"),
    [
        (write(4), write(5, at=8, **OTHER)),
        (write(4, **STREAM), write(5, at=8, **STREAM, **OTHER)),
    ],
)
def test_a_later_write_is_new(last: Write, wanted: Write) -> None:
    assert find_committed(b"", wanted) is None
    assert find_committed(last.progress(), wanted) is None


@pytest.mark.parametrize(
    ("last", "wanted"),
    [
        (write(), write()),  # its own commit, whose answer was lost
        (write(**STREAM), write(at=8, **STREAM, **OTHER)),
        (write(), write(run="r2", at=8, records=4, counts="C", digest="D")),
        (write(named=True), write(named=True, run="r2", at=8, digest="D")),
        (write(named=True), write(named=True, at=8)),
        (write(named=True), write(named=True, at=8, run="")),
        (write(-1, **BATCH), write(-1, at=8, **BATCH)),
    ],
)
def test_a_repeat_is_answered_with_the_first_result(last: Write, wanted: Write, caplog: pytest.LogCaptureFixture) -> None:
    """Proves that a job that gives other rows in its next run is not held up for good, and that other counts are told."""
    assert find_committed(last.progress(), wanted) == orjson.loads(last.progress())
    assert ("its repeat has 4: the first records stay" in caplog.text) is (wanted.records == 4)


@pytest.mark.parametrize(
    ("last", "wanted", "message"),
    [
        (write(), write(at=8), "micro-batch 5 has a second write without a writeId, and 'spark-q' wrote the first"),
        (write(), write(run="r2", at=8, topics="T", counts="C", digest="D"), "it is not the same write. Nothing was written"),
        (write(named=True), write(named=True, run="r2", at=8, records=4, counts="C", digest="D"), "wrote 3 .* has 4, or"),
        (write(named=True), write(named=True, at=8, digest="D"), "or other topics or bytes"),
        (write(-1, **BATCH), write(-1, at=8, digest="D", **BATCH), "`tutti producers forget spark-q` deletes"),
    ],
)
def test_another_write_is_not_mistaken_for_a_repeat(last: Write, wanted: Write, message: str) -> None:
    with pytest.raises(Refused, match=message):
        find_committed(last.progress(), wanted)


@pytest.mark.parametrize("last", [b"17", b"{}", b"\xff", b'{"batch":5,"records":3,"digest":"d"}'])
def test_progress_of_another_producer_is_refused(last: bytes) -> None:
    with pytest.raises(Refused, match="this sink did not write"):
        find_committed(last, write())


def test_an_outdated_driver_is_refused() -> None:
    kinds: list[dict[str, Any]] = [{}, STREAM]
    for kind in kinds:
        with pytest.raises(Fenced, match="micro-batch 5 of 'spark-q' cannot follow 6, which is already in the log: another driver"):
            find_committed(write(6, **kind).progress(), write(5, at=8, **kind))


def test_the_longest_write_has_room_in_its_commit() -> None:
    run, sixteen = "0" * 36, "0" * 16
    longest = write(2**63 - 1, run=run, at=2**63 - 1, records=2**32, topics=sixteen, counts=sixteen, digest=sixteen)
    assert check_progress(longest.progress()) == longest.progress()
    assert len("spark-" + run + "-") + WRITE_ID_MAX <= NAME_BYTES_MAX
