"""Tests of a table's ledger: which ranges it has, which run works on which range, and what happens to the ranges of a dead run."""

from __future__ import annotations

import fcntl
import json
import os
import signal
import subprocess
import sys
from contextlib import closing
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from threading import Thread
from typing import cast

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql import SparkSession

from tutti.errors import Damaged, UsageError
from tutti_spark.backfill.ledger import LOCK, RUNS, ClaimLost, Ledger, Step, TableSource, close_claim, merge_spans, missing, read
from tutti_spark.backfill.tables import DeltaTable

ABOUT = TableSource("aa", "delta", "")
SPANS = st.lists(st.tuples(st.integers(0, 40), st.integers(1, 10)).map(lambda span: (span[0], span[0] + span[1])), max_size=8)


@given(st.integers(0, 40), st.integers(0, 40), SPANS)
def test_the_missing_ranges_are_in_no_span(start: int, end: int, there: list[tuple[int, int]]) -> None:
    """Proves that gaps hold exactly the offsets of the range that no span has, in order, and that joining spans changes none."""
    held = {offset for low, high in there for offset in range(low, high)}
    gaps = [offset for low, high in missing(start, end, there) for offset in range(low, high)]
    assert gaps == [offset for offset in range(start, end) if offset not in held]
    merged = merge_spans(there)
    assert {offset for low, high in merged for offset in range(low, high)} == held
    assert all(high < low for (_, high), (low, _) in pairwise(merged))


def test_a_run_claims_slice_after_slice_until_the_range_is_done(tmp_path: Path) -> None:
    """Proves that slices cover the range once, around finished ranges, and that the ledger of the next run has them."""
    ledger = Ledger(tmp_path, ABOUT)
    taken = []
    while (step := ledger.step(0, 25, 10)) is not None:
        assert step.claim is not None
        assert not step.resolve
        taken.append((step.claim.start, step.claim.end))
        ledger.finish(step.claim)
    assert taken == [(0, 10), (10, 20), (20, 25)]
    ledger.close()
    again = Ledger(tmp_path, ABOUT)
    step = again.step(5, 40)
    assert step is not None
    assert step.claim is not None
    assert (step.claim.start, step.claim.end) == (25, 40)
    again.close()


def test_two_runs_share_the_work_and_the_last_waits(tmp_path: Path) -> None:
    """Proves that two live runs claim no common range, and that a run without work left waits for the other."""
    one, other = Ledger(tmp_path, ABOUT), Ledger(tmp_path, ABOUT)
    first, second = one.step(0, 20, 10), other.step(0, 20, 10)
    assert first is not None
    assert second is not None
    assert first.claim is not None
    assert second.claim is not None
    assert (first.claim.end, second.claim.start) == (10, 10)
    one.finish(first.claim)
    assert one.step(0, 20, 10) == Step(waits_for=(second.claim,))
    assert other.step_swap(0, 5) == Step(second.claim, resolve=True)  # its own, which it did not finish
    other.drop(second.claim)
    assert other.step_swap(0, 5).claim is not None
    one.close()
    other.close()


def test_a_swap_has_the_table_to_itself(tmp_path: Path) -> None:
    """Proves that no run claims any range during a swap, and that a run without missing ranges need not wait."""
    swapping, other = Ledger(tmp_path, ABOUT), Ledger(tmp_path, ABOUT)
    step = other.step(0, 10)
    assert step is not None
    assert step.claim is not None
    assert swapping.step_swap(20, 30) == Step(waits_for=(step.claim,))
    other.finish(step.claim)
    swap = swapping.step_swap(20, 30).claim
    assert swap is not None
    assert other.step(0, 20) == other.step(30, 40) == Step(waits_for=(swap,))
    assert other.step_swap(30, 40) == Step(waits_for=(swap,))
    assert other.step(0, 10) is None
    swapping.close()
    assert other.step(30, 40) == Step(replace(swap, run=other.run), resolve=True)
    other.drop(swap)
    step = other.step(30, 40)
    assert step is not None
    assert step.claim is not None
    other.close()


def test_a_run_that_begins_while_the_table_is_exchanged_lives(tmp_path: Path) -> None:
    """Proves that its name is not left in the directory that goes: it passed for dead, and what it claimed was taken from it."""
    Ledger(tmp_path, ABOUT).close()
    begun: list[Ledger] = []
    beginning = Thread(target=lambda: begun.append(Ledger(tmp_path, ABOUT)))
    with (tmp_path / LOCK).open() as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        beginning.start()
        beginning.join(0.5)
        assert list((tmp_path / RUNS).iterdir()) == []
    beginning.join()
    assert [file.name for file in (tmp_path / RUNS).iterdir()] == [begun[0].run]
    begun[0].close()


def test_claims_of_a_killed_run_are_resolved_by_the_next(tmp_path: Path) -> None:
    """Proves that a claim is known for a dead run's after SIGKILL, not before, and that the dead cannot finish it any more."""
    code = (
        "import sys, time; from pathlib import Path; from tutti_spark.backfill.ledger import LOCK, RUNS, TableSource as About; "
        "from tutti_spark.backfill.ledger import Ledger; "
        "ledger = Ledger(Path(sys.argv[1]), About('aa', 'delta', '')); ledger.step(0, 10); "
        "print('claimed', flush=True); time.sleep(600)"
    )
    with subprocess.Popen([sys.executable, "-c", code, str(tmp_path)], stdout=subprocess.PIPE, cwd=Path.cwd()) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"claimed\n"
        ledger = Ledger(tmp_path, ABOUT)
        waiting = ledger.step(0, 10)
        assert waiting is not None
        (claim,) = waiting.waits_for
        os.kill(process.pid, signal.SIGKILL)
    step = ledger.step(0, 10)
    assert step is not None
    assert step.resolve
    assert step.claim is not None
    with pytest.raises(ClaimLost, match="took over"):
        close_claim(ledger.state(), claim, claim.run)
    ledger.finish(step.claim)
    assert ledger.step(0, 10) is None
    ledger.close()
    state_now = read(tmp_path)
    assert state_now is not None
    assert (state_now.done, state_now.open) == ([(0, 10)], [])


def test_a_table_is_filled_from_one_thing(tmp_path: Path) -> None:
    """Proves that another log, other topics and another format are refused and both are named, and that a corrupt ledger is
    reported.
    """
    Ledger(tmp_path, ABOUT).close()
    with pytest.raises(UsageError, match="filled from log aa, and this is log bb"):
        Ledger(tmp_path, TableSource("bb", "delta", ""))
    with pytest.raises(UsageError, match="filled from all topics, and this run reads x"):
        Ledger(tmp_path, TableSource("aa", "delta", "x"))
    with pytest.raises(UsageError, match="the table is delta, and --format is parquet"):
        Ledger(tmp_path, TableSource("aa", "parquet", ""))
    assert not list((tmp_path / "runs").iterdir())
    file = tmp_path / "ledger.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"version": 9}))
    with pytest.raises(UsageError, match="version 9"):
        Ledger(tmp_path, ABOUT)
    for text in (
        "{",
        "[]",
        '"x"',
        "1",
        '{"version": 1}',
        '{"version": 1, "done": 1}',
        '{"version": 1, "done": [], "open": [{"x": 1}]}',
    ):
        file.write_text(text)
        with pytest.raises(Damaged, match="is not a ledger"):
            Ledger(tmp_path, ABOUT)


def test_a_table_that_is_a_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "table").write_text("x")
    with pytest.raises(UsageError, match="table/_tutti cannot be the directory of a ledger, because a part of that path is a file"):
        read(tmp_path / "table" / "_tutti")


def test_a_recreated_ledger_has_another_id(tmp_path: Path) -> None:
    """Delta Lake skips a transaction whose id it has seen: claim 1 of the new ledger is not claim 1 of the old one."""
    ids = []
    for _ in range(2):
        for _ in range(2):
            with closing(Ledger(tmp_path, ABOUT)) as ledger:
                ids.append(ledger.state().id)
        (tmp_path / "ledger.json").unlink()
    assert ids[0] == ids[1]
    assert ids[2] == ids[3]
    assert ids[0] != ids[2]
    assert all(ids)


def test_a_ledger_of_an_earlier_release_keeps_the_names_of_its_claims(tmp_path: Path) -> None:
    with closing(Ledger(tmp_path, ABOUT)) as ledger:
        ledger.step(0, 10)
    file = tmp_path / "ledger.json"
    held = json.loads(file.read_text())
    del held["id"]
    file.write_text(json.dumps(held | {"version": 1}))
    with closing(Ledger(tmp_path, ABOUT)) as ledger:
        state = ledger.state()
        table = DeltaTable(cast(SparkSession, None), "t", ledger, "aa", "append")
        assert (state.id, [table._id(claim) for claim in state.open]) == ("", ["tutti/aa/0-10/1"])
