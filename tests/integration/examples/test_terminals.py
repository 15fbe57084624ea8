"""Tests of the runner of pages: it compares the whole output of each command, and only masked values may differ."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.integration.examples import terminals
from tests.integration.examples.terminals import Terminals, masked


def follow(tmp_path: Path, *blocks: tuple[str, str]) -> list[str]:
    """Follow a page of these blocks; return the output that the page does not have."""
    page = tmp_path / "page.md"
    page.write_text("".join(f'```{kind} title="here"\n{text}\n```\n\n' for kind, text in blocks))
    with Terminals([], tmp_path, os.environ) as running:
        running.follow(page)
        return running.not_compared


def test_the_whole_output_is_compared(tmp_path: Path) -> None:
    assert follow(tmp_path, ("sh", "printf 'a 1\\nb 2\\n'"), ("text", "a 1\nb 2")) == []
    for shown in ("a 1", "b 2", "a 1\nb", "a 1\nb 2\nc 3", "b 2\na 1"):
        with pytest.raises(AssertionError, match="the page \\(-\\) and the terminal \\(\\+\\) differ"):
            follow(tmp_path, ("sh", "printf 'a 1\\nb 2\\n'"), ("text", shown))


def test_output_without_a_block_is_reported(tmp_path: Path) -> None:
    assert follow(tmp_path, ("sh", "echo lost"), ("sh", "echo shown"), ("text", "shown")) == ["lost"]


def test_a_running_command_shows_its_lines_one_block_after_another(tmp_path: Path) -> None:
    # One process from its first line to its end, so that the key interrupts it at any point.
    count = "sh -c 'for n in 1 2 3; do echo line $n; done; exec sleep 600'"
    assert follow(tmp_path, ("sh", count), ("text", "line 1"), ("text", "line 2\nline 3"), ("sh", "^C")) == []
    assert follow(tmp_path, ("sh", count), ("text", "..."), ("text", "...\nline 3"), ("sh", "^C")) == []


def test_output_after_the_last_command_is_reported(tmp_path: Path) -> None:
    loud = "sh -c 'trap \"echo Traceback; exit 130\" INT; echo ready; while :; do sleep 0.1; done'"
    assert follow(tmp_path, ("sh", loud), ("text", "ready"), ("sh", "^C")) == ["Traceback"]
    assert follow(tmp_path, ("sh", "echo shown"), ("text", "shown"), ("sh", "echo lost")) == ["lost"]


def test_a_command_that_fails_ends_the_page(tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match="it ended with 1"):
        follow(tmp_path, ("sh", "false"))


def test_a_report_is_asked_for_again_until_it_is_that_of_the_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settle = "tutti() { echo x >> asked; wc -l < asked; }"
    assert follow(tmp_path, ("sh", settle), ("sh", "tutti members"), ("text", "3")) == []
    monkeypatch.setattr(terminals, "REPORT_WAIT_S", 0.1)
    with pytest.raises(AssertionError, match="differ"):
        follow(tmp_path, ("sh", settle), ("sh", "tutti members"), ("text", "no such report"))


@pytest.mark.parametrize(
    ("one", "another"),
    [
        ('"timestamp":"2026-11-27T18:20:50.297698Z","x"', '"timestamp":"2027-01-02T03:04:05Z","x"'),
        (f"log {'1a' * 16} of gateway g2", f"log {'b2' * 16} of gateway g2"),
        ('{"pid":16140,"data":"/tmp/x/data/tutorial/g1"}', '{"pid":7,"data":"/srv/data/tutorial/g1"}'),
        ("orders  totals.py@vm:16291  g1", "orders  totals.py@host.example:3    g1"),
        ("g1  127.0.0.1:7400  0.8 s  2.98 ms", "g1  127.0.0.1:7400  12 s   0.1 ms"),
        ("g1  127.0.0.1:7400  primary    yes          yes    1    0", "g1  127.0.0.1:7400  primary  yes  no  2  0"),
        ("1 record committed to orders in 0.0 s (29 a second)", "1 record committed to orders in 1.5 s (1 a second)"),
        ("1 segment, 19 frames, 14 committed records, 128.0 MiB", "1 segment, 21 frames, 14 committed records, 1.0 MiB"),
    ],
)
def test_values_of_one_run_are_masked(one: str, another: str) -> None:
    assert masked([one]) == masked([another])


@pytest.mark.parametrize(
    ("one", "another"),
    [
        ("sent 12 lines", "sent 0 lines"),
        ("first offset 12, last offset 12", "first offset 12, last offset 13"),
        ('{"offset":0,"topic":"orders"}', '{"offset":1,"topic":"orders"}'),
        ("g1  127.0.0.1:7400  silent", "g1  127.0.0.1:7410  silent"),
        ("19 frames, 14 committed records", "19 frames, 13 committed records"),
        ("batch 0: tea 10", "batch 0: tea 11"),
    ],
)
def test_all_other_values_count(one: str, another: str) -> None:
    assert masked([one]) != masked([another])
