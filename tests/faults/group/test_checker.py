"""Proves that the outside checker finds each kind of broken promise, and nothing where all held."""

from collections.abc import Callable
from copy import deepcopy
from pathlib import Path

import pytest

from tests.faults.group import checker
from tests.faults.group.broken import expect_found
from tests.faults.group.checker import Log, Record
from tests.faults.group.journal import Life, Story, Use, View, Writer, parse_value, read_story, read_view, value_of

COUNT = 8


class History:
    """Two producers that take turns, one reader, three gateways; every promise is kept."""

    def __init__(self) -> None:
        self.stories = {name: Story(name, dense=name == "b") for name in ("a", "b")}
        records = []
        for story in self.stories.values():
            story.lives.append(Life(0, 0, 0, 0, 0))
        for offset in range(COUNT):
            name, number = ("a", "b")[offset % 2], offset // 2 + 1
            records.append(Record(offset, name, number, number, number))
            self.stories[name].uses[number] = Use(number, 100 * offset, 0, "c", offset, 100 * offset + 50)
        blocks = {(0, 4): "one", (4, 8): "two"}
        self.logs = [Log(f"g{number}", 0, list(records), dict(blocks)) for number in range(3)]
        self.views = [View("r", [(0, 4, "one")], [[0, 3, 8]])]

    def check(self) -> list[str]:
        return checker.check(list(self.stories.values()), self.views, self.logs)

    def everywhere(self, change: Callable[[Log], object]) -> None:
        for log in self.logs:
            change(log)
            log.blocks = {}


def gap(told: History) -> None:
    told.everywhere(lambda log: log.records.pop(3))


def nobodys(told: History) -> None:
    told.everywhere(lambda log: log.records.__setitem__(2, Record(2, "a", 2, 0, 0)))


def damaged(told: History) -> None:
    told.logs[1].damage.append("position 7 is damaged")


def another_order(told: History) -> None:
    log = told.logs[2]
    log.records[6], log.records[7] = log.records[7]._replace(offset=6), log.records[6]._replace(offset=7)


def other_bytes(told: History) -> None:
    told.logs[1].blocks[4, 8] = "three"


def lost(told: History) -> None:
    told.everywhere(lambda log: log.records.pop())


def elsewhere(told: History) -> None:
    told.stories["a"].uses[2].offset = 3


def twice(told: History) -> None:
    told.everywhere(lambda log: log.records.append(Record(8, "a", 5, 4, 5)))


def abort_in_the_log(told: History) -> None:
    told.stories["a"].uses[4].outcome = "a"


def sequence_left_out(told: History) -> None:
    told.everywhere(lambda log: log.records.__setitem__(7, Record(7, "b", 5, 4, 4)))


def overtaken(told: History) -> None:
    def swap(log: Log) -> None:
        log.records[4], log.records[6] = Record(4, "a", 3, 4, 4), Record(6, "a", 4, 3, 3)

    told.everywhere(swap)
    told.stories["a"].uses[3].outcome = told.stories["a"].uses[4].outcome = ""


def left_out_in_silence(told: History) -> None:
    told.stories["a"].uses[5] = Use(5, 900, 0)
    told.stories["a"].uses[6] = Use(6, 910, 0)
    told.everywhere(lambda log: log.records.append(Record(8, "a", 5, 6, 6)))


def place_left_out(told: History) -> None:
    told.everywhere(lambda log: log.records.__setitem__(7, Record(7, "b", 4, 4, 5)))


def resumed_behind(told: History) -> None:
    told.stories["a"].lives.append(Life(1000, 3, 0, 4, 4))


def resumed_at_an_old_place(told: History) -> None:
    told.stories["b"].lives.append(Life(1000, 4, 3, 4, 4))


def fenced_by_nobody(told: History) -> None:
    told.stories["a"].uses[5] = Use(5, 900, 0, "f")


def out_of_time(told: History) -> None:
    told.stories["a"].uses[1].sent = 10**6


def frontier_back(told: History) -> None:
    told.views[0].frontiers.append([5, 4])


def read_otherwise(told: History) -> None:
    told.views[0].read.append((4, 8, "three"))


@pytest.mark.parametrize(
    ("break_it", "what"),
    [
        (gap, "C1"),
        (nobodys, "C5"),
        (damaged, "C5"),
        (another_order, "C1"),
        (other_bytes, "C8"),
        (lost, "C3"),
        (elsewhere, "C2"),
        (twice, "C2"),
        (abort_in_the_log, "C2"),
        (sequence_left_out, "C4"),
        (overtaken, "C4"),
        (left_out_in_silence, "C4"),
        (place_left_out, "C4"),
        (resumed_behind, "C3"),
        (resumed_at_an_old_place, "C3"),
        (fenced_by_nobody, "C4"),
        (out_of_time, "order"),
        (frontier_back, "C7"),
        (read_otherwise, "C8"),
    ],
)
def test_each_broken_promise_is_found(break_it: Callable[[History], None], what: str) -> None:
    expect_found(History(), break_it, what)


def test_allowed_outcomes_are_not_findings() -> None:
    told = History()
    told.stories["a"].uses |= {5: Use(5, 900, 0, "a"), 6: Use(6, 910, 0, "u"), 7: Use(7, 920, 0)}  # failed, and killed on its way
    told.stories["a"].uses[8] = Use(8, 950, 1, "c", 8, 960)
    told.stories["a"].uses[4].offset = -1  # its place is not known any more
    for log in told.logs:
        log.records.append(Record(8, "a", 5, 8, 6))
    told.logs[0].records = told.logs[0].records[:5]  # one is behind
    told.logs[0].blocks.pop((4, 8))
    assert told.check() == []


def test_logs_with_different_starts_are_checked_together() -> None:
    told = History()
    told.logs[0].records = told.logs[0].records[4:]
    told.logs[0].start = 4
    told.logs[1].records = told.logs[1].records[:6]
    told.logs[2] = deepcopy(told.logs[1])
    assert told.check() == []
    told.logs[1].records[5] = told.logs[1].records[5]._replace(use=9)
    assert any(finding.startswith("C1") for finding in told.check())


def begins_at_4() -> History:
    """The oldest records are gone from every gateway: uses 1 and 2 of each producer."""
    told = History()
    told.everywhere(lambda log: log.records.__delitem__(slice(4)))
    for log in told.logs:
        log.start = 4
    return told


def test_a_record_with_an_unknown_offset_is_not_lost_below_the_log_start() -> None:
    told = begins_at_4()
    told.stories["a"].uses[2].offset = -1
    told.stories["c"] = Story("c", uses={1: Use(1, 10, 0, "c", -1, 20)}, lives=[Life(0, 0, 0, 0, 0)])
    assert told.check() == []


def test_a_record_sent_after_present_records_is_lost_if_absent() -> None:
    told = begins_at_4()
    told.stories["a"].uses[5] = Use(5, 900, 0, "c", -1, 950)
    assert told.check() == ["C3: use 5 of a was committed at -1, but is lost; the log ends at 8"]
    told = History()
    told.stories["a"].uses[5] = Use(5, 900, 0, "c", -1, 950)  # nothing is gone from this log
    assert told.check() == ["C3: use 5 of a was committed at -1, but is lost; the log ends at 8"]


def test_a_journal_continues_after_a_torn_line(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    path.write_text("b 1 0 0\ns 1 1 10\nc 1 0 30\ns 2 2 35\na 2 36\ns 3 3 40\nc 3 1")
    writer = Writer(path)
    writer.note("b", 50, 2, 3)
    writer.note("e", 60)
    writer.close()
    story = read_story("a", path)
    assert story.uses == {1: Use(1, 10, 0, "c", 0, 30), 2: Use(2, 35, 0, "a", -1, 36), 3: Use(3, 40, 0)}
    assert story.lives == [Life(1, 0, 0, 0, 0), Life(50, 2, 3, 1, 1, ended=True)]
    path.write_text(f"n 1\nf 5 primary 2\nq 0 5 {'a' * 64}\nn 3\nf 4 minority 4\nq 5")
    assert read_view("r", path) == View("r", [(0, 5, "a" * 64)], [[5], [4]])


@pytest.mark.parametrize("use", [1, 31, 250])
def test_a_value_identifies_its_record_and_a_changed_one_does_not(use: int) -> None:
    value = value_of("plain-0", use, 7)
    assert parse_value(value) == ("plain-0", use, 7)
    assert parse_value(value + b"x") == ("", 0, 0)
    assert parse_value(b"") == ("", 0, 0)
