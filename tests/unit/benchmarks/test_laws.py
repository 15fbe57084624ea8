"""Tests of the scaling benchmarks: sizes grow up to the given one, the disk space is checked, and tables are ordered by size."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.kept import command, refuse_without_room
from benchmarks.laws import __main__ as command_line
from benchmarks.laws.clients import crowds
from benchmarks.laws.law import Asked, Bench
from benchmarks.laws.log import sizes_gb
from benchmarks.laws.names import LAWS
from benchmarks.laws.sizes import name_of, records_of
from benchmarks.pages import Measure, by_place, spread

GB = 1_000_000_000


@pytest.mark.parametrize(
    ("most", "steps"),
    [(50, [1, 2, 5, 10, 20, 50]), (10, [1, 2, 5, 10]), (3, [1, 2, 3]), (1, [0.25, 0.5, 1]), (0.4, [0.1, 0.2, 0.4])],
)
def test_a_log_is_measured_on_its_way_to_the_final_size(most: float, steps: list[float]) -> None:
    assert sizes_gb(most) == steps


def test_producers_are_spread_over_processes_of_their_own() -> None:
    assert crowds(1) == [1]
    assert crowds(50) == [50]
    assert crowds(51) == [26, 25]
    assert crowds(1000) == [250] * 4


def test_a_load_has_as_many_records_as_it_holds_within_bounds() -> None:
    assert records_of(900, 1_000_000) == 1000
    assert records_of(1_000_000, 1) == 20
    assert records_of(10, 1 << 40) == 2_000_000
    assert [name_of(size) for size in (10, 1000, 100_000, 1_000_000)] == ["10 B", "1 KB", "100 KB", "1 MB"]


def test_a_disk_without_enough_free_space_is_refused_before_the_start(tmp_path: Path) -> None:
    refuse_without_room(tmp_path, 10 * GB, "log", lambda _: 14 * GB)
    with pytest.raises(SystemExit, match=r"log needs 10\.0 GB and 4 GB to spare at .*, where 13\.9 GB are free"):
        refuse_without_room(tmp_path, 10 * GB, "log", lambda _: 14 * GB - 100_000_000)


def test_nothing_is_measured_if_one_of_many_lacks_free_space(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.argv", ["laws", "batches", "log", "--log-gb", "1e9", "--directory", str(tmp_path)])
    with pytest.raises(SystemExit, match="log needs"):
        command_line.main()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["nothing"], "unknown law 'nothing': the laws are batches"),
        (["--hours", "0"], "a finite number above zero"),
        (["--rounds", "0"], "a whole number of at least one"),
        (["--json", "/nowhere/x.json"], "the directory /nowhere does not exist"),
    ],
)
def test_impossible_arguments_are_reported(
    arguments: list[str], told: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["laws", *arguments])
    with pytest.raises(SystemExit) as ended:
        command_line.main()
    assert ended.value.code == 2
    assert told in capsys.readouterr().err


def test_larger_arguments_need_more_free_space() -> None:
    assert LAWS["log"].bytes_wanted(Asked(log_gb=50)) > 50 * GB
    assert LAWS["sustained"].bytes_wanted(Asked(sustained_gb=10)) > 30 * GB
    assert LAWS["hours"].bytes_wanted(Asked(hours=10)) > 10 * LAWS["hours"].bytes_wanted(Asked(hours=0.05))


def test_every_law_holds_only_what_it_measures() -> None:
    for name, law in LAWS.items():
        assert law.measures, name
        assert {held.measure for held in law.held} <= set(law.measures), name


def test_rounds_are_ordered_by_size_and_measure(tmp_path: Path) -> None:
    measures = {"p50": Measure("ms", "less"), "rate": Measure("k/s", "more"), "never": Measure("x", "more")}
    bench = Bench(tmp_path, Asked(), measures)
    for value in (2.0, 1.0, 4.0):
        bench.add("p50", "1", value)
    bench.add("p50", "3", 5.0)
    bench.add("rate", "3", 7.0)
    assert by_place("members", bench.found, measures).splitlines() == [
        "| members | p50, ms | rate, k/s |",
        "|---|---|---|",
        "| 1 | 2 (1 to 4) |  |",
        "| 3 | 5 | 7 |",
    ]
    assert spread([3.0]) == "3"


def test_a_command_is_shown_without_its_files() -> None:
    said = command("benchmarks.laws", ["log", "--json", "x.json", "--directory=/mnt", "--log-gb", "50"])
    assert said == "python -m benchmarks.laws log --log-gb 50"
