"""Proves which times without a receipt count as a fault's, and which do not."""

from tests.faults.group.trial import NS, Done, calm_gap, longest_gap

RECEIPTS = [0, 1 * NS, 5 * NS, 6 * NS, 13 * NS, 14 * NS]
FAULTS = [Done("kill", begun=2 * NS, recovered=3 * NS), Done("kill", begun=14 * NS, recovered=15 * NS)]


def test_a_gap_that_touches_a_fault_is_its_own() -> None:
    assert [longest_gap(RECEIPTS, fault) for fault in FAULTS] == [4.0, 1.0]


def test_a_gap_outside_of_faults_is_reported_separately() -> None:
    assert calm_gap(RECEIPTS, FAULTS) == 7.0
    assert calm_gap(RECEIPTS, []) == 7.0
    assert calm_gap([0, 9 * NS], FAULTS) == 0.0
