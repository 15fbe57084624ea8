"""Tests of the end of a backfill beside a query (`--live`): each record arrives once, from the backfill or from a stream of the
query.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.unit.streaming.fake_log import FakeLog
from tutti.errors import UsageError
from tutti_spark.backfill.ranges import Live, Stream, live_query
from tutti_spark.backfill.run import Backfill, Plan
from tutti_spark.source import open_log

LOG = "log-1"
FRONTIER = 100


class Batch(NamedTuple):
    """What one stream reads in one micro-batch."""

    begin: int
    end: int
    log: str = LOG

    @property
    def line(self) -> str:
        return json.dumps({"log": self.log, "offset": self.end, "from": self.begin})


def checkpoint(root: Path, batches: dict[int, list[Batch | str]], done: int | None = None, version: int = 1) -> str:
    """A checkpoint as Spark writes it: the streams of each batch (text: another source's line), and the last one that is done."""
    for folder in ("offsets", "commits"):
        (root / folder).mkdir(parents=True)
    for number, streams in batches.items():
        lines = [stream if isinstance(stream, str) else stream.line for stream in streams]
        named = [f"{at}:{line}" for at, line in enumerate(lines)] if version == 2 else lines
        (root / "offsets" / str(number)).write_text("\n".join([f"v{version}", "{}", *named]))
        if done is not None and number <= done:
            (root / "commits" / str(number)).write_text("v1\n{}")
    return str(root)


@pytest.fixture(autouse=True)
def _log(monkeypatch: pytest.MonkeyPatch) -> None:
    log = FakeLog(FRONTIER, LOG)
    monkeypatch.setattr(open_log, "source_of", lambda options: log)


def end(tmp_path: Path, live: str, **wanted: Any) -> int:
    """Return the end of a backfill beside the query of a checkpoint."""
    return Plan(Backfill(str(tmp_path / "table"), {"gateways": "tutti://h:1"}, live=live, **wanted)).report.end


def test_an_append_with_streams_of_different_starts_is_refused(tmp_path: Path) -> None:
    """Proves that no append ends at the least begin, as the other stream's records from there to its own begin would be lost."""
    live = checkpoint(tmp_path / "c", {0: [Batch(40, 70), Batch(60, 70)]}, done=0)
    with pytest.raises(UsageError, match=r"began at different offsets \(40 and 60\)\. .* use --mode merge"):
        end(tmp_path, live)
    assert end(tmp_path, live, end=40) == 40, "all streams bring in what lies above"
    with pytest.raises(UsageError, match=r"began at 40 and 60 and .* --end 40"):
        end(tmp_path, live, end=41)


def test_an_append_ends_where_all_streams_began(tmp_path: Path) -> None:
    """Proves that streams which begin at one offset leave one end."""
    live = checkpoint(tmp_path / "c", {0: [Batch(40, 70), Batch(40, 50)]}, done=0)
    assert end(tmp_path, live) == 40
    with pytest.raises(UsageError, match=r"began at 40 and .* --end 40"):
        end(tmp_path, live, end=41)


@pytest.mark.parametrize("mode", ["merge", "swap"])
def test_a_merge_or_swap_waits_for_the_stream_that_began_last(tmp_path: Path, mode: str) -> None:
    """Proves that a range which ends below the begin of a stream is refused: what lies between would be in no table."""
    batches: dict[int, list[Batch | str]] = {0: [Batch(40, 50), Batch(60, 80)]}
    with pytest.raises(UsageError, match=r"began at offsets 40 and 60, .* up to 50 only\. Records 50 to 59 would be missing"):
        end(tmp_path, checkpoint(tmp_path / "c", batches, done=0), mode=mode)
    batches[1] = [Batch(50, 65), Batch(80, 90)]
    live = checkpoint(tmp_path / "later", batches, done=1)
    assert end(tmp_path, live, mode=mode) == 65
    assert end(tmp_path, live, mode=mode, end=62) == 62
    with pytest.raises(UsageError, match="has finished up to 65 and"):
        end(tmp_path, live, mode=mode, end=66)


def test_a_query_that_has_finished_nothing(tmp_path: Path) -> None:
    """Proves that a stream counts from its begin until its first batch is finished."""
    live = checkpoint(tmp_path / "c", {0: [Batch(40, 50), Batch(40, 80)]})
    assert end(tmp_path, live) == end(tmp_path, live, mode="merge") == 40
    apart = checkpoint(tmp_path / "apart", {0: [Batch(40, 50), Batch(60, 80)]})
    with pytest.raises(UsageError, match="up to 40 only"):
        end(tmp_path, apart, mode="merge")


def test_a_first_batch_that_spark_removed(tmp_path: Path) -> None:
    """Proves that no begin is made up, and that a merge goes by the first batch that is left of each stream."""
    live = checkpoint(tmp_path / "c", {7: [Batch(50, 65), Batch(80, 90)], 8: [Batch(65, 85), Batch(90, 95)]}, done=8)
    with pytest.raises(UsageError, match="no longer contains the start of its query"):
        end(tmp_path, live)
    assert end(tmp_path, live, mode="merge") == 85
    behind = checkpoint(tmp_path / "behind", {7: [Batch(50, 65), Batch(80, 90)]}, done=7)
    with pytest.raises(UsageError, match="up to 65 only"):
        end(tmp_path, behind, mode="merge")


@pytest.mark.parametrize("version", [1, 2])
def test_the_streams_of_a_query_differ_from_other_sources(tmp_path: Path, version: int) -> None:
    """Proves that each stream is followed through all batches, whatever other sources and logs the query has, in both formats."""
    other = Batch(1, 2, "log-2")
    batches: dict[int, list[Batch | str]] = {
        0: ['{"topic":{"0":5}}', Batch(40, 50), other, "-"],
        1: ["-", Batch(50, 90), other, Batch(70, 80)],
    }
    live = live_query(checkpoint(tmp_path / "c", batches, done=1, version=version), LOG)
    assert live == Live((Stream(40, 90), Stream(70, 80)), complete=True)
    with pytest.raises(UsageError, match=r"reads log-1 and log-2, and this is log log-3"):
        live_query(str(tmp_path / "c"), "log-3")


def test_a_stream_without_an_offset_in_the_last_finished_batch_has_finished_nothing(tmp_path: Path) -> None:
    """Proves that a stream which comes later is not left out of what all have finished."""
    live = live_query(checkpoint(tmp_path / "c", {0: [Batch(40, 50), "-"], 1: [Batch(50, 60), Batch(45, 60)]}, done=0), LOG)
    assert live.streams == (Stream(40, 50), Stream(45, 45))
    assert live.finished == 45


def test_kept_batches_of_async_progress_tracking(tmp_path: Path) -> None:
    """Proves that batches which Spark did not keep do no harm."""
    live = live_query(checkpoint(tmp_path / "c", {0: [Batch(40, 50)], 5: [Batch(80, 90)]}, done=0), LOG)
    assert live == Live((Stream(40, 50),), complete=True)


def test_stray_names_in_a_checkpoint_are_passed_over(tmp_path: Path) -> None:
    """Proves that copies, rests and directories beside the batches are neither batches nor a failure."""
    live = checkpoint(tmp_path / "c", {0: [Batch(40, 50)]}, done=0)
    for folder in ("offsets", "commits"):
        for name in ("1~", "0.bak", "1 (copy)", "12.compact", "7-old", "1e3", "²"):
            (tmp_path / "c" / folder / name).write_text("stray")
        (tmp_path / "c" / folder / "9").mkdir()
    assert live_query(live, LOG) == Live((Stream(40, 50),), complete=True)


@pytest.mark.parametrize(
    "text",
    ["", "v2\n{}\nwithout a name", 'v1\n{}\n{"log": "log-1", "offset": 5, "from": -3}', b"v1\n{}\n\xff\xfe"],
)
def test_a_batch_that_cannot_be_read_is_refused(tmp_path: Path, text: str | bytes) -> None:
    """Proves that an unreadable offset is an error, and not mistaken for another source's."""
    live = checkpoint(tmp_path / "c", {0: [Batch(40, 50)]}, done=0)
    (tmp_path / "c" / "offsets" / "1").write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(UsageError, match=r"--live .*/c cannot be read \("):
        live_query(live, LOG)


def test_a_path_that_is_not_a_checkpoint_is_refused(tmp_path: Path) -> None:
    """Proves that a wrong directory, and one with inconsistent batches, are reported."""
    with pytest.raises(UsageError, match="has no offsets/N"):
        live_query(str(tmp_path / "nothing"), LOG)
    live = checkpoint(tmp_path / "c", {0: [Batch(40, 50)]}, done=0)
    (tmp_path / "c" / "commits" / "3").write_text("v1\n{}")
    with pytest.raises(UsageError, match="the end of batch 3 is missing"):
        live_query(live, LOG)
