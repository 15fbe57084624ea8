"""Tests of benchmark figures: the longest time without a receipt, several sizes in one table, and the member lists of a growing
group.
"""

from __future__ import annotations

import tomllib
from pathlib import Path

from benchmarks.figures import figure
from benchmarks.fleet import laid_out
from benchmarks.group import table
from benchmarks.pace import gap_ms

MS = 1_000_000


def test_a_gap_is_searched_only_within_the_span() -> None:
    receipts = [1 * MS, 4 * MS, 5 * MS, 20 * MS]
    assert gap_ms(receipts, (4 * MS, 10 * MS)) == 5  # from the receipt at 5 to the end of the span
    assert gap_ms(receipts, (2 * MS, 6 * MS)) == 2
    assert gap_ms(receipts, (0, 21 * MS)) == 15


def test_no_receipt_at_all_is_a_gap_as_long_as_the_span() -> None:
    assert gap_ms([], (3 * MS, 10 * MS)) == 7


def test_sizes_are_columns_of_one_table() -> None:
    lines = table(
        [
            figure("1 x p50", [0.3], "ms", better="less"),
            figure("1 x send()", [500.0], "MB/s"),
            figure("3 x p50", [0.7, 0.9, 0.8], "ms", 0.8, "less"),
            figure("3 x send()", [300.0], "MB/s", 280.0),
            figure("3 x another member", [1.0], "ms"),
        ]
    ).splitlines()
    assert [line.split() for line in lines] == [
        ["members", "1", "3"],
        ["p50", "ms", "0.3", "0.8", "<=", "0.8"],
        ["send()", "MB/s", "500", "300", ">=", "280"],
        ["another", "member", "ms", "-", "1"],
    ]


def test_a_gateway_that_may_be_added_knows_those_before_it_and_the_founders_know_themselves(tmp_path: Path) -> None:
    with laid_out(2, 4, tmp_path) as group:
        configs = [tomllib.loads((measured.data.parent / f"{measured.name}.toml").read_text()) for measured in group]
        bases = [measured.base for measured in group]
        assert not any(measured.started for measured in group)
    assert [len(config["group"]["members"]) for config in configs] == [2, 2, 3, 4]
    assert min(abs(one - other) for one in bases for other in bases if one is not other) >= 4
    assert list(tmp_path.iterdir()) == []
