"""Tests of the duplicate lookup: duplicates get their offsets, in order, and a corrupt index never loses an answer."""

import time
from collections.abc import Sequence

import pytest

from tests.unit.node.fakes import LOG
from tutti.data.client_protocol import OFFSET_UNKNOWN, Committed, Duplicate
from tutti.errors import Damaged
from tutti.log.read.reader import LogReader
from tutti.log.read.sequence_lookup import SequenceRun
from tutti_gateway.node.clients.duplicate_lookup import DuplicateLookup, LocatedDuplicates


class Index(LogReader):
    def __init__(self, found: dict[tuple[int, int, int], int], error: Exception | None = None) -> None:
        self._found, self._error = found, error
        self.closed = False
        self.passes = 0

    def find_all(self, runs: Sequence[SequenceRun]) -> list[int | None]:
        self.passes += 1
        if self._error is not None:
            raise self._error
        return [self._found.get((run.producer, run.first_sequence, run.records)) for run in runs]

    def close(self) -> None:
        self.closed = True


def answered(index: Index, *asked: tuple[int, list[Duplicate]]) -> list[LocatedDuplicates]:
    reports: list[LocatedDuplicates] = []
    lookups = DuplicateLookup(lambda: index, reports.append, LOG)
    for session, duplicates in asked:
        lookups.put(session, duplicates)
    assert lookups.waiting == sum(len(duplicates) for _, duplicates in asked)
    lookups.start()
    deadline = time.monotonic() + 10
    while lookups.waiting:
        assert time.monotonic() < deadline
        time.sleep(0.002)
    lookups.stop()
    assert index.closed
    return reports


def test_offsets_are_found_and_a_trimmed_one_is_unknown() -> None:
    index = Index({(1, 5, 2): 70, (2, 1, 1): 3})
    reports = answered(index, (9, [Duplicate(1, 4, 5, 2), Duplicate(1, 4, 1, 4)]), (8, [Duplicate(2, 1, 1, 1)]))
    assert reports == [
        LocatedDuplicates(9, (Committed(1, 4, 5, 2, 70), Committed(1, 4, 1, 4, OFFSET_UNKNOWN))),
        LocatedDuplicates(8, (Committed(2, 1, 1, 1, 3),)),
    ]


@pytest.mark.parametrize("error", [Damaged("byte 7"), OSError(5, "gone"), IndexError("defect")])
def test_an_index_in_trouble_leaves_the_offset_unknown_and_the_outcome_certain(error: Exception) -> None:
    reports = answered(Index({}, error), (1, [Duplicate(1, 1, 1, 1)]))
    assert reports == [LocatedDuplicates(1, (Committed(1, 1, 1, 1, OFFSET_UNKNOWN),))]


def test_many_duplicates_are_looked_up_in_one_pass() -> None:
    index = Index({(1, sequence, 1): sequence + 10 for sequence in range(500)})
    reports = answered(index, *((session, [Duplicate(1, 1, session, 1)]) for session in range(500)))
    assert [report.answers[0].offset for report in reports] == list(range(10, 510))
    assert index.passes == 1
