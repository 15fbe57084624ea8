"""Proves that the outside checker finds each broken promise of unordered records, and nothing where all held."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.faults.group.broken import expect_found
from tests.faults.group.checker import Record
from tests.faults.group.journal import Life, Story, Use, View, Writer, lanes_journal, read_story, read_view
from tests.faults.group.lane_checker import Copy, check_lanes

GATEWAYS = ("g1", "g2", "g3")
LANES = ("1-aa", "2-bb")
COUNT = 8


class History:
    """Two producers that take turns, each with half of its records in either lane; three gateways; every promise is kept."""

    def __init__(self) -> None:
        self.stories = {name: Story(name, unordered=True, lives=[Life(0, 0, 0, 0, 0)]) for name in ("~a", "~b")}
        self.spoiled: set[tuple[str, str]] = set()
        self.copies: dict[tuple[str, str], Copy] = {}
        for number, lane in enumerate(LANES):
            records = []
            for offset in range(COUNT):
                name, sequence = ("~a", "~b")[offset % 2], offset // 2 + 1
                use = sequence + number * COUNT // 2
                sent = 1000 * number + 100 * offset
                records.append(Record(offset, name, sequence, use, use))
                self.stories[name].uses[use] = Use(use, sent, 0, "c", offset, sent + 50, lane)
            for place, gateway in enumerate(GATEWAYS):
                blocks = {(0, 4): f"{lane} one", (4, 8): f"{lane} two"}
                self.copies[gateway, lane] = Copy(gateway, 0, list(records), blocks, lane=lane, origin=place == number)
        self.views = [View("r", lanes={lane: [(0, 4, f"{lane} one"), (4, 8, f"{lane} two")] for lane in LANES})]

    def check(self) -> list[str]:
        return check_lanes(list(self.stories.values()), self.views, list(self.copies.values()), GATEWAYS, self.spoiled)

    def use(self, number: int, name: str = "~a") -> Use:
        return self.stories[name].uses[number]

    def everywhere(self, change: Callable[[list[Record]], object], lane: str = LANES[0]) -> None:
        """Change a lane on all gateways alike; what was read of it is not told."""
        for gateway in GATEWAYS:
            change(self.copies[gateway, lane].records)
            self.copies[gateway, lane].blocks = {}
        for view in self.views:
            view.lanes.pop(lane, None)

    def loses(self, gateway: str, lane: str, end: int, doubt: int = 0) -> None:
        """A gateway has the lane up to there, and so much undecided behind it."""
        copy = self.copies[gateway, lane]
        copy.records, copy.doubt, copy.blocks = copy.records[:end], doubt, {}


def gap(told: History) -> None:
    told.everywhere(lambda records: records.pop(3))


def nobodys(told: History) -> None:
    told.everywhere(lambda records: records.__setitem__(2, Record(2, "~a", 2, 0, 0)))


def never_sent(told: History) -> None:
    del told.stories["~a"].uses[3]


def damaged(told: History) -> None:
    told.copies["g2", LANES[0]].damage.append("position 7 is damaged")


def damaged_elsewhere_than_bits_were_flipped(told: History) -> None:
    told.spoiled.add(("g1", LANES[0]))
    damaged(told)


def another_order_on_one(told: History) -> None:
    records = told.copies["g3", LANES[1]].records
    records[6], records[7] = records[7]._replace(offset=6), records[6]._replace(offset=7)


def other_bytes_on_one(told: History) -> None:
    told.copies["g2", LANES[1]].blocks[4, 8] = "others"
    told.views.clear()


def not_on_all(told: History) -> None:
    told.loses("g3", LANES[0], 7)


def a_lane_that_one_never_had(told: History) -> None:
    del told.copies["g3", LANES[0]]


def lost_everywhere(told: History) -> None:
    told.everywhere(lambda records: records.pop())


def lost_with_the_origin_s_disk_and_in_doubt_nowhere(told: History) -> None:
    told.views.clear()
    del told.copies["g1", LANES[0]]
    told.loses("g2", LANES[0], 7)
    told.loses("g3", LANES[0], 7)
    told.copies["g1", LANES[0]] = Copy("g1", 0, told.copies["g2", LANES[0]].records, lane=LANES[0])


def in_doubt_although_the_origin_is_there(told: History) -> None:
    told.views.clear()
    for gateway in GATEWAYS:
        told.loses(gateway, LANES[0], 7, doubt=1)


def elsewhere(told: History) -> None:
    told.use(2).offset = 4


def in_another_lane(told: History) -> None:
    told.use(2).lane = LANES[1]


def twice_in_one_lane(told: History) -> None:
    told.everywhere(lambda records: records.append(Record(8, "~a", 5, 4, 4)))


def in_two_lanes(told: History) -> None:
    told.everywhere(lambda records: records.append(Record(8, "~a", 5, 4, 4)), LANES[1])


def nowhere_and_there(told: History) -> None:
    told.use(4).outcome = "a"


def overtaken(told: History) -> None:
    def swap(records: list[Record]) -> None:
        records[4], records[6] = records[6]._replace(offset=4, sequence=3), records[4]._replace(offset=6, sequence=4)

    told.use(3).outcome = told.use(4).outcome = ""
    told.everywhere(swap)


def sequence_left_out(told: History) -> None:
    told.everywhere(lambda records: records.__setitem__(7, records[7]._replace(sequence=5)))


def fenced_by_nobody(told: History) -> None:
    told.stories["~a"].uses[9] = Use(9, 5000, 0, "f")


def out_of_time(told: History) -> None:
    told.use(1).sent = 10**6


def read_otherwise(told: History) -> None:
    told.views[0].lanes[LANES[0]][1] = (4, 8, "others")


def read_with_a_gap(told: History) -> None:
    del told.views[0].lanes[LANES[0]][0]


def read_twice(told: History) -> None:
    told.views[0].lanes[LANES[0]].append((4, 8, f"{LANES[0]} two"))


def read_and_gone(told: History) -> None:
    told.views[0].lanes[LANES[0]].append((8, 9, "what was decided once"))


@pytest.mark.parametrize(
    ("break_it", "what"),
    [
        (gap, "C1"),
        (nobodys, "C5"),
        (never_sent, "C5"),
        (damaged, "C5"),
        (damaged_elsewhere_than_bits_were_flipped, "C5"),
        (another_order_on_one, "C1"),
        (other_bytes_on_one, "C8"),
        (not_on_all, "C2"),
        (a_lane_that_one_never_had, "C2"),
        (lost_everywhere, "C3"),
        (lost_with_the_origin_s_disk_and_in_doubt_nowhere, "C3"),
        (in_doubt_although_the_origin_is_there, "C3"),
        (elsewhere, "C2"),
        (in_another_lane, "C3"),
        (twice_in_one_lane, "C2"),
        (in_two_lanes, "C2"),
        (nowhere_and_there, "C2"),
        (overtaken, "C4"),
        (sequence_left_out, "C4"),
        (fenced_by_nobody, "C4"),
        (out_of_time, "order"),
        (read_otherwise, "C8"),
        (read_with_a_gap, "C8"),
        (read_twice, "C8"),
        (read_and_gone, "C7"),
    ],
)
def test_each_broken_promise_is_found(break_it: Callable[[History], None], what: str) -> None:
    expect_found(History(), break_it, what)


def test_allowed_outcomes_are_not_findings() -> None:
    told = History()
    told.stories["~a"].uses |= {
        9: Use(9, 2000, 0, "u"),
        10: Use(10, 2010, 0),
        11: Use(11, 2020, 0, "a"),
    }  # in doubt, killed, refused
    told.stories["~a"].uses[12] = Use(12, 3000, 1, "c", 8, 3050, LANES[0])
    told.stories["~a"].uses[13] = Use(13, 3010, 1, "c", -1, 3060, LANES[0])  # its place is not known any more
    told.everywhere(lambda records: records.extend([Record(8, "~a", 1, 12, 12), Record(9, "~a", 2, 13, 13)]))  # the next epoch
    assert told.check() == []


def test_a_corrupt_copy_contributes_nothing_and_the_others_suffice() -> None:
    told = History()
    told.spoiled.add(("g2", LANES[0]))
    told.copies["g2", LANES[0]].damage.append("position 5 is damaged")
    told.loses("g2", LANES[0], 2)
    assert told.check() == []
    told.loses("g3", LANES[0], 2)
    assert any(finding.startswith("C2") for finding in told.check())


@pytest.mark.parametrize("gone", ["wiped", "damaged"])
def test_a_record_decided_just_before_a_disk_loss_is_at_least_in_doubt(gone: str) -> None:
    told = History()
    told.views.clear()
    if gone == "wiped":
        del told.copies["g1", LANES[0]]
        told.copies["g1", LANES[0]] = Copy("g1", 0, told.copies["g2", LANES[0]].records[:7], lane=LANES[0])
    else:
        told.spoiled.add(("g1", LANES[0]))
        told.copies["g1", LANES[0]].damage.append("position 3 is damaged")
        told.copies["g1", LANES[0]].origin = False
    told.loses("g2", LANES[0], 7, doubt=1)
    told.loses("g3", LANES[0], 7)
    assert told.check() == []


def begins_later() -> History:
    """Retention let the oldest records of a lane go, on each gateway others."""
    told = History()
    for gateway, start in zip(GATEWAYS, (5, 4, 6), strict=True):
        copy = told.copies[gateway, LANES[0]]
        copy.records, copy.start, copy.blocks = copy.records[start:], start, {}
    told.views.append(View("late", lanes={LANES[0]: [(4, 8, "one")]}))
    return told


def test_records_removed_by_retention_are_not_lost() -> None:
    told = begins_later()
    told.use(1).offset = -1
    assert told.check() == []
    told.views[-1].lanes[LANES[0]] = [(7, 8, "one")]
    assert any(finding.startswith("C8") for finding in told.check())


def test_a_missing_record_after_the_start_of_a_lane_is_lost() -> None:
    told = begins_later()
    told.use(3).offset = 4
    told.everywhere(lambda records: records.pop())
    assert "C3: use 4 of ~b was committed at 1-aa@7, but is lost" in told.check()


def test_a_journal_records_lanes(tmp_path: Path) -> None:
    path = lanes_journal(tmp_path / "journal")
    path.write_text("b 1 0 0\ns 1 1 10\nc 1 0 30 1-aa\ns 2 2 35\na 2 36\ns 3 3 40\nc 3 1 99")
    writer = Writer(path)
    writer.note("b", 50, 0, 0)
    writer.close()
    story = read_story("~a", path, unordered=True)
    assert story.uses == {1: Use(1, 10, 0, "c", 0, 30, "1-aa"), 2: Use(2, 35, 0, "a", -1, 36), 3: Use(3, 40, 0)}
    path.write_text(f"q 0 5 {'a' * 64}\nq 0 5 {'b' * 64} 1-aa\nq 5 6 {'c' * 64} 1-aa\nq 6 7 {'d' * 64}")
    assert read_view("r", path) == View("r", [(0, 5, "a" * 64)], lanes={"1-aa": [(0, 5, "b" * 64), (5, 6, "c" * 64)]})
