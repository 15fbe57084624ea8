"""Tests of the pages of figures: their text stays, measured values appear in them, missed targets are named, and a value without a
measurement names the command for it.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks import machine as limits_of_the_machine
from benchmarks.figures import Figure
from benchmarks.kept import kept_figures
from benchmarks.pages import Measure
from benchmarks.peers.side import MEASURES
from benchmarks.performance import __main__ as made
from benchmarks.performance.kept import Kept, named, read
from benchmarks.performance.sections import SECTIONS, growth, laws, legend, machine, peers, receipts, sources, spark, targets

SOURCE = {"machine": "a machine", "versions": {"tutti-ingest": "1"}, "command": "python -m x", "foreign_cpu": [0.1, 0.3]}


def _peers(**rounds: dict[str, list[float]]) -> dict[str, Any]:
    systems = {"Tutti": "synced on all three", "the machine": "a limit", "Kafka, 3 brokers": "in memory of all in sync"}
    return {"kind": "peers", **SOURCE, "systems": systems, "rounds": rounds}


def _laws(limits: dict[str, Any] | None = None, figures: list[Figure] | None = None, **found: Any) -> dict[str, Any]:
    kept = [one._asdict() for one in figures or []]
    return {"kind": "laws", **SOURCE, "machine_limits": limits or {}, "laws": found, "figures": kept}


def test_written_text_stays_and_every_placeholder_is_known() -> None:
    templates = {template.stem: template.read_text() for template in made.TEMPLATES}
    assert list(templates) == ["performance-targets", "performance"]
    assert sorted(made.PLACE.findall("\n".join(templates.values()))) == sorted(SECTIONS)
    for name, template in templates.items():
        page = (made.PAGES / f"{name}.md").read_text()
        for written in made.PLACE.split(template)[::2]:
            assert written in page, "run python -m benchmarks.performance FILE..."


def test_the_first_page_compares_systems_and_leaves_targets_to_the_second() -> None:
    templates = {template.stem: made.PLACE.findall(template.read_text()) for template in made.TEMPLATES}
    assert templates["performance"][0] == "peers"
    assert templates["performance-targets"] == ["targets"]


def test_without_result_files_each_part_names_its_command() -> None:
    text = "".join(made.page(template.read_text(), Kept()) for template in made.TEMPLATES)
    assert "{{" not in text
    assert text.count("*This page has no result of") == 6 + 9
    assert "`python -m benchmarks.laws log` measures it" in text


def test_the_legend_explains_the_rows_of_the_page_and_no_others() -> None:
    told = _peers(**{name: {"Tutti": [1.0]} for name in ("100 B", "1,000/s, p99", "200 connections, compiled client")})
    rows = [line.split(" | ")[0] for line in legend(Kept([told])).splitlines()[2:]]
    assert rows == ["| 1 KB, 100 B", "| 1,000/s", "| compiled client"]
    others = _peers(**{"1 KB": {"Kafka, 3 brokers": [50.0]}})
    assert "no result" in legend(Kept([others])), "the page has only rows with a value of Tutti"


def test_every_row_has_a_legend() -> None:
    for name in MEASURES.keys() - limits_of_the_machine.MEASURES.keys():
        assert "no result" not in legend(Kept([_peers(**{name: {"Tutti": [1.0]}})])), name


def test_a_target_is_shown_with_the_machine_and_the_best_of_the_others() -> None:
    told = _peers(**{"1 KB": {"Tutti": [300.0, 350.0, 320.0], "the machine": [640.0], "Kafka, 3 brokers": [50.0]}})
    factor, share = targets(Kept([told])).splitlines()[2:]
    assert factor.startswith(
        "| 1 KB | 6.4 times Kafka, 3 brokers | >= 3 |  | 0.5 x the machine's 640; 6.4 x as good as the best of the others"
    )
    assert share.startswith("| 1 KB | 0.5 times the machine | >= 0.9 | **missed** | ")


def test_a_law_is_checked_against_its_claim() -> None:
    found = {"p99, times that of none": {"0": [1.0], "a full scan": [1.5, 3.0, 2.5]}}
    assert "| 2.5 (1.5 to 3) x | <= 2 | **missed** |" in targets(Kept([_laws(readers=found)]))
    found = {"p99, times that of none": {"0": [1.0], "a full scan": [1.5]}}
    assert "missed" not in targets(Kept([_laws(readers=found)]))


def test_a_law_is_held_to_how_much_it_grows() -> None:
    """Proves it between places that have a name, and from the first to the last where these are what was asked for."""
    found = {"one at a time, p50": {"1": [0.5], "3": [1.0], "4": [1.6, 1.4, 1.2], "7": [9.0]}}
    assert "| Members: one at a time, p50, 4 to 1 | 2.8 x | <= 3 |  |" in targets(Kept([_laws(members=found)]))
    found = {"one at a time, p50": {"1": [0.5], "3": [1.0]}}
    assert "Members" not in targets(Kept([_laws(members=found)]))
    found = {
        "coordinator": {"6 min": [100.0], "12 min": [150.0], "18 min": [112.0]},
        "another": {"6 min": [100.0], "18 min": [101.0]},
    }
    told = targets(Kept([_laws(hours=found)]))
    assert "coordinator, 18 min to 6 min | 1.12 x | <= 1.1 | **missed** |" in told
    assert "another, 18 min to 6 min | 1.01 x | <= 1.1 |  |" in told


def test_a_law_has_its_sentence_its_growth_a_plot_a_measure_and_a_table() -> None:
    found = {"one at a time, p50": {"1": [0.5], "3": [1.0], "7": [2.0, 1.0, 3.0]}, "send() of 1 KB": {"1": [900.0], "7": [90.0]}}
    text = laws(Kept([_laws(members=found)]))
    assert "each member syncs it" in text
    assert "From 1 to 7: one at a time, p50 x 4, send() of 1 KB x 0.1." in text
    assert text.count("<svg") == 2
    assert "| 7 | 2 (1 to 3) | 90 |" in text


def test_a_single_size_has_no_growth() -> None:
    assert growth({"p50": {"1": [2.0]}}, {"p50": Measure("ms", "less")}) == "Measured at one point only."


def test_the_later_file_counts_and_limits_are_of_all() -> None:
    limits = {"CRC32C": {"the machine": [30.0]}}
    first = _laws(limits, members={"send() of 1 KB": {"1": [1.0]}}, log={})
    later = _laws(limits, members={"send() of 1 KB": {"1": [5.0]}})
    kept = Kept([first, later, _peers(CRC32C={"the machine": [33.0]})])
    assert kept.laws == {"members": {"send() of 1 KB": {"1": [5.0]}}, "log": {}}
    assert "| CRC32C | GB/s | 30 (30 to 33) |" in machine(kept)


def test_figures_of_spark_are_shown_with_their_base() -> None:
    figures = [
        Figure("Spark batch read, files, 100 B", 6.0, "M rows/s", 5.0, 7.0, 7.0),
        Figure("  share of memory", 92, "%", 90, 93, 80),
    ]
    assert list(named(figures)) == ["Spark batch read, files, 100 B", "Spark batch read, files, 100 B: share of memory"]
    kept = Kept([_laws(figures=figures)])
    assert "| Spark batch read, files, 100 B: share of memory | 92 (90 to 93) % |" in spark(kept)
    rows = targets(kept).splitlines()[2:]
    assert [("missed" in row) for row in rows] == [True, False]


def test_recorded_runs_of_benchmarks_are_reused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.argv", ["benchmarks", "spool", "--json", "x"])
    file = tmp_path / "x.json"
    file.write_text(json.dumps(kept_figures("benchmarks", [0.5], [Figure("a rate", 1.0, "MB/s", 0.5, 2.0, 3.0)])))
    kept = Kept([read(file)])
    assert "| a rate | 1 (0.5 to 2) MB/s | >= 3 | **missed** |  |" in targets(kept)
    assert "| `python -m benchmarks spool` |" in sources(kept)
    assert "| 0.50 (at most 0.50) |" in sources(kept)


def test_systems_are_columns_of_one_table() -> None:
    text = peers(Kept([_peers(**{"1 KB": {"Tutti": [400.0, 300.0, 500.0], "the machine": [640.0]}})]))
    assert text.splitlines()[2] == "| 1 KB | MB/s | 400 (300 to 500) | 640 |  |"


def test_the_meaning_of_each_receipt_is_listed() -> None:
    assert "| Kafka, 3 brokers | in memory of all in sync |" in receipts(Kept([_peers()]))


def test_one_run_writes_both_pages(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "peers.json"
    file.write_text(json.dumps(_peers(**{"1 KB": {"Tutti": [400.0], "the machine": [640.0]}})))
    assert made.main([str(file), "--pages", str(tmp_path)]) == 0
    assert "| 1 KB | MB/s | 400 | 640 |  |" in (tmp_path / "performance.md").read_text()
    assert "| 1 KB | 0.625 times the machine | >= 0.9 | **missed** |" in (tmp_path / "performance-targets.md").read_text()
    assert capsys.readouterr().out.count(" of 1 files") == 2


def test_a_file_of_something_else_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    other = tmp_path / "other.json"
    other.write_text(json.dumps([1]))
    with pytest.raises(ValueError, match="no figures"):
        read(other)
    assert made.main([str(other)]) == 2
    for text, lacks in (('{"kind": "peers"}', "rounds"), ('{"kind": "laws", "laws": {}}', "foreign_cpu, machine_limits")):
        other.write_text(text)
        with pytest.raises(ValueError, match=lacks):
            read(other)
    assert made.main([str(tmp_path / "none.json")]) == 2
    assert "No such file" in capsys.readouterr().err
