"""Tests of `tutti produce --unordered`: a run reports what each lane committed, and which records are in no lane or in doubt."""

from __future__ import annotations

import io
from typing import Any, NamedTuple

import orjson
import pyarrow as pa
import pytest

from tests.unit.cli.records.test_sending import Promise
from tutti.errors import Aborted, Unavailable, Unknown
from tutti_gateway.cli.main import main
from tutti_gateway.cli.records.inputs import Chunk
from tutti_gateway.cli.records.sender import Report, Sender


class UnorderedProducer:
    """Spreads batches over two lanes; the last one is not decided."""

    closed = False

    def __init__(self) -> None:
        self.batches: list[pa.RecordBatch] = []

    def send_batch(self, topic: str, batch: pa.RecordBatch, ordering: str) -> Any:
        assert ordering == "unordered"
        self.batches.append(batch)
        number = len(self.batches) - 1
        promise = Promise(Unknown("g1 is away") if number == 4 else sum(one.num_rows for one in self.batches[number % 2 :: 2][:-1]))
        return LanePromise(promise, f"{number % 2}-lane")

    def close(self) -> None:
        self.closed = True

    def __exit__(self, *_: object) -> None:
        self.close()


class LanePromise(NamedTuple):
    promise: Promise
    lane: str
    left: bool = True

    def result(self, timeout: float | None = None) -> int:
        return self.promise.result(timeout)


def test_a_run_of_unordered_records_reports_each_lane_and_unknown_outcomes(monkeypatch: pytest.MonkeyPatch) -> None:
    made = UnorderedProducer()
    monkeypatch.setattr("tutti.producer.Producer", lambda url, producer=None: made)
    sender = Sender("tutti://x:1", "t", None, settings="t lines None", rate=None, unordered=True)
    for _ in range(4):
        sender.send(Chunk([b"a", b"b", b"c"], None))
    report = sender.finish()
    assert (report.records, report.first, report.last, report.complete) == (12, None, None, True)
    assert report.fields()["lanes"] == {"0-lane": (0, 5), "1-lane": (0, 5)}
    sender.send(Chunk([b"d"], None))
    with pytest.raises(Unavailable, match="g1 is away"):
        sender.finish()
    report = sender.stop_early(1.0)
    assert (report.records, report.undecided) == (12, 1)
    assert report.sentence().endswith(
        "another run sends them again: send only the rest, that is all from record 14 of the input, counted from 1; the outcome "
        "of records 13-13 is unknown, check these first"
    )
    assert "lanes" not in Report("t", None, 1, 0, 0, 0, 1.0).fields()


class FailingOver(UnorderedProducer):
    """Accepts batches with given outcomes, into the lane of one gateway and then of another."""

    def __init__(self, outcomes: list[int | Exception]) -> None:
        super().__init__()
        self.outcomes = outcomes

    def send_batch(self, topic: str, batch: pa.RecordBatch, ordering: str) -> Any:
        self.batches.append(batch)
        outcome = self.outcomes[len(self.batches) - 1]
        left = not isinstance(outcome, Unknown) or str(outcome) != "never left"
        return LanePromise(Promise(outcome), "2-1" if len(self.batches) == 1 else "3-1", left)


def test_a_run_of_unordered_records_that_breaks_off_names_the_records_of_the_input_that_are_not_committed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """They are not a prefix: another lane commits records after a failed one."""
    late, late_too, none, unsent = Unknown("late"), Unknown("late"), Aborted("no"), Unknown("never left")
    made = FailingOver([0, late, late_too, 0, none, 1, unsent])
    monkeypatch.setattr("tutti.producer.Producer", lambda url, producer=None: made)
    monkeypatch.setattr("tutti_gateway.cli.records.inputs.BLOCK_BYTES", 4)  # two records
    for as_json in (True, False):
        made.batches.clear()
        monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"a\n" * 14)))
        assert main(["produce", "--url", "tutti://x:1", "--topic", "t", "--unordered", *(["--json"] if as_json else [])]) == 3
        out, err = capsys.readouterr()
        if as_json:
            told = orjson.loads(out)
            assert (told["records"], told["undecided"], told["undecided_records"]) == (6, 4, [[3, 6]])
            assert (told["uncommitted_records"], told["uncommitted_from"]) == ([[9, 10]], 13)
    assert (
        "6 records committed to t before it stopped; the outcome of 4 more is unknown: another run sends them again: send only "
        "the rest, that is records 9-10 and all from record 13 of the input, counted from 1; the "
        "outcome of records 3-6 is unknown, check these first\n"
    ) in err
