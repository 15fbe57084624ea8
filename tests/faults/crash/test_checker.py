"""Proves that the outside checker finds each kind of broken promise, and nothing where all held."""

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.faults.crash import checker
from tests.faults.crash.checker import Record, value_of
from tests.faults.crash.witness import Witness, read_witness

History = tuple[dict[str, Witness], list[Record]]


def history() -> History:
    """Two producers, three records each, in turns; everything kept."""
    witnesses = {name: Witness(name) for name in ("a", "b")}
    log = []
    for offset in range(6):
        name, number = ("a", "b")[offset % 2], offset // 2 + 1
        log.append(Record(offset, name, number, value_of(name, number)))
        witnesses[name].sent[number] = 100 * offset
        witnesses[name].committed[number] = (offset, 100 * offset + 50)
    return witnesses, log


def gap(told: History) -> None:
    del told[1][3]


def other_bytes(told: History) -> None:
    told[1][2] = told[1][2]._replace(value=b"a 2 y")


def lost(told: History) -> None:
    del told[1][5]


def elsewhere(told: History) -> None:
    told[0]["a"].committed[2] = (3, 10**9)


def abort_in_the_log(told: History) -> None:
    del told[0]["b"].committed[3]
    told[0]["b"].aborted.add(3)


def twice(told: History) -> None:
    told[1].append(Record(6, "b", 3, value_of("b", 3)))


def overtaken(told: History) -> None:
    told[1][0], told[1][2] = (
        Record(0, "a", 2, value_of("a", 2)),
        Record(2, "a", 1, value_of("a", 1)),
    )
    told[0]["a"].committed = {}


def out_of_time(told: History) -> None:
    told[0]["a"].sent[1] = 10**6


@pytest.mark.parametrize(
    ("break_it", "what"),
    [
        (gap, "C1"),
        (other_bytes, "C5"),
        (lost, "C3"),
        (elsewhere, "C3"),
        (abort_in_the_log, "C2"),
        (twice, "C4"),
        (overtaken, "C4"),
        (out_of_time, "order"),
    ],
)
def test_each_broken_promise_is_found(break_it: Callable[[History], None], what: str) -> None:
    told = history()
    assert checker.check(list(told[0].values()), told[1]) == []
    break_it(told)
    findings = checker.check(list(told[0].values()), told[1])
    assert any(finding.startswith(what) for finding in findings), findings


def test_a_frontier_that_went_back_and_a_changed_past_are_found() -> None:
    assert list(checker.monotone([1, 1, 5])) == []
    assert len(list(checker.monotone([1, 5, 4]))) == 1
    _, log = history()
    assert list(checker.same(log, log, "later")) == []
    assert list(checker.same(log[:4], log, "later")) == []
    assert len(list(checker.same(log, log[:4], "later"))) == 1
    assert len(list(checker.same(log, [log[1], *log[1:]], "later"))) == 1


def test_a_witness_survives_a_cut_last_line(tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.write_text("s 1 10\ns 2 20\nc 1 0 30\na 2\ns 2 40\nc 2 1")
    witness = read_witness("a", path)
    assert witness.sent == {1: 10, 2: 40}
    assert witness.committed == {1: (0, 30)}
    assert witness.aborted == set()
