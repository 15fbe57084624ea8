"""A damaged snapshot at the start of a segment stops no retention, is told, and is made again as it was."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import structlog

from tests.unit.log.history import NOW_US, SMALL, THREE_SEGMENTS, fit, opened, sample, scrub_round, trimmed, write_log
from tests.unit.log.history import firsts as segments
from tests.unit.log.lane_history import OTHER, begun, idle, kept, long
from tutti.log.files.lane_paths import lane_path
from tutti.log.files.layout import index_path, list_positions, snapshot_path
from tutti.log.files.options import LogOptions
from tutti.log.format.snapshot import read_snapshot
from tutti_gateway.core import limits
from tutti_gateway.core.protocol.actions import LaneHeld
from tutti_gateway.core.protocol.events import Event
from tutti_gateway.log.tools.verify import verify
from tutti_gateway.log.writer import LogWriter
from tutti_gateway.node.disk.scrub_schedule import ScrubSchedule

NO_LIMIT = replace(SMALL, retention_bytes=1)


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lanes have some segments."""
    monkeypatch.setattr(limits, "LANE_SEGMENT_BYTES", 16 << 10)
    monkeypatch.setattr(limits, "LANE_SEGMENT_BYTES_FIRST", 16 << 10)
    monkeypatch.setattr(limits, "RETENTION_CHECK_US", 0)


def spoil(path: Path | str, position: int) -> bytes:
    """Flip one bit of a snapshot; what it was."""
    file = Path(snapshot_path(str(path), position))
    good = file.read_bytes()
    file.write_bytes(good[:-7] + bytes([good[-7] ^ 4]) + good[-6:])
    assert read_snapshot(str(path), position) is None
    return good


def content(path: Path | str, position: int) -> bytes:
    return Path(snapshot_path(str(path), position)).read_bytes()


def gone(path: Path, position: int) -> None:
    Path(snapshot_path(str(path), position)).unlink()


@pytest.mark.parametrize("harm", [spoil, gone])
def test_retention_of_the_ordered_log_passes_over_a_damaged_snapshot(tmp_path: Path, harm: Callable[[Path, int], object]) -> None:
    write_log(tmp_path, sample(400, size=1500))
    writer, _, close = opened(tmp_path, THREE_SEGMENTS)
    whole = writer.retention.propose(NOW_US)
    close()
    assert whole is not None
    harm(tmp_path, whole.places[0][0])
    harm(tmp_path, whole.places[2][0])
    writer, _, close = opened(tmp_path, THREE_SEGMENTS)
    proposed = writer.retention.propose(NOW_US)
    assert proposed is not None
    assert proposed.places == tuple(place for at, place in enumerate(whole.places) if at not in (0, 2))
    assert proposed.forced in {position for position, _ in proposed.places}
    close()


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("seen", [False, True])
def test_retention_of_a_lane_passes_over_a_damaged_snapshot(tmp_path: Path, seen: bool) -> None:
    """Also over one that was whole when retention saw it first."""
    path = lane_path(str(tmp_path), OTHER)
    logs = kept(tmp_path, long(OTHER), held=1)
    before = list_positions(path, "seg")
    if not seen:
        logs.close()
    for position in before[1:3]:
        spoil(path, position)
    if not seen:
        logs = begun(tmp_path)
    logs.set_replicated(LaneHeld(*OTHER, before[3] - 1))
    idle(logs)
    assert list_positions(path, "seg")[0] == before[3]
    logs.close()


@pytest.mark.usefixtures("small")
def test_a_lane_never_begins_with_a_snapshot_that_is_damaged_since_it_was_looked_at(tmp_path: Path) -> None:
    path = lane_path(str(tmp_path), OTHER)
    logs = kept(tmp_path, long(OTHER), held=1)
    before = list_positions(path, "seg")
    spoil(path, before[3])
    logs.set_replicated(LaneHeld(*OTHER, before[3] - 1))
    idle(logs)
    assert list_positions(path, "seg")[0] == before[2]
    logs.close()
    (log,) = begun(tmp_path).start()
    assert (log.position + len(log.tail), log.halted) == (201, "")


def news(writer: LogWriter) -> list[str]:
    scrub_round(writer.scrubber)
    return writer.scrubber.snapshots.pop_messages()


@pytest.mark.parametrize("harm", [spoil, gone])
def test_a_round_makes_damaged_snapshots_again_as_they_were_and_tells_it(
    tmp_path: Path, harm: Callable[[Path, int], object]
) -> None:
    write_log(tmp_path, sample(400, size=1500))
    between = segments(tmp_path)[1:]
    good = [content(tmp_path, position) for position in between]
    writer, _, close = opened(tmp_path, NO_LIMIT)
    assert news(writer) == []
    some = [*between[:3], between[-1]]
    for position in some:
        harm(tmp_path, position)
    told = news(writer)
    assert [content(tmp_path, position) for position in between] == good
    what = "corrupt" if harm is spoil else "missing"
    for position in some:
        file = snapshot_path(str(tmp_path), position)
        assert [line[: len(file) + 16] for line in told if file in line] == [
            f"{file} is {what}: the scrubber rebuilds it"[: len(file) + 16],
            f"{file} was rebuilt"[: len(file) + 16],
        ]
    assert writer.scrubber.snapshots.damaged == {}
    assert news(writer) == []
    close()
    assert verify(tmp_path).damage == []


def test_a_snapshot_behind_a_void_batch_waits_for_the_index_that_tells_of_it(tmp_path: Path) -> None:
    write_log(tmp_path, sample(400, size=1500))
    first, following = segments(tmp_path)[1:3]
    writer, _, close = opened(tmp_path, NO_LIMIT)
    good = spoil(tmp_path, following)
    index = Path(index_path(str(tmp_path), first))
    data = index.read_bytes()
    index.write_bytes(data[:200] + bytes([data[200] ^ 1]) + data[201:])
    scrub_round(writer.scrubber)  # the index is made again
    assert following in writer.scrubber.snapshots.damaged
    scrub_round(writer.scrubber)
    assert content(tmp_path, following) == good
    close()
    assert verify(tmp_path).damage == []


def test_the_first_snapshot_of_a_trimmed_log_is_written_again_from_memory(tmp_path: Path) -> None:
    position, _ = trimmed(tmp_path, sample(160, size=1500))
    writer, _, close = opened(tmp_path)
    assert news(writer) == []
    good = spoil(tmp_path, position)
    assert news(writer) == [
        f"{snapshot_path(str(tmp_path), position)} was corrupt",
        f"{snapshot_path(str(tmp_path), position)} was rebuilt",
    ]
    assert content(tmp_path, position) == good
    close()
    assert verify(tmp_path).damage == []


def test_where_nothing_says_the_first_snapshot_again_it_is_told_once_with_what_to_do(tmp_path: Path) -> None:
    position, _ = trimmed(tmp_path, sample(160, size=1500))
    good = spoil(tmp_path, position)
    writer, _, close = opened(tmp_path)
    (told,) = news(writer)
    assert told.startswith(f"{snapshot_path(str(tmp_path), position)} is corrupt: the log begins with this snapshot")
    assert "Restore the file" in told
    assert news(writer) == []
    assert list(writer.scrubber.snapshots.damaged) == [position]
    Path(snapshot_path(str(tmp_path), position)).write_bytes(good)
    assert news(writer) == []
    assert writer.scrubber.snapshots.damaged == {}
    close()


@pytest.mark.usefixtures("small")
def test_a_lane_makes_its_snapshots_again(tmp_path: Path) -> None:
    path = lane_path(str(tmp_path), OTHER)
    logs = kept(tmp_path, long(OTHER), LogOptions())
    position = list_positions(path, "seg")[2]
    good = spoil(path, position)
    while not logs.rounds:
        logs.scrub()
    assert content(path, position) == good
    assert [line.endswith("was rebuilt") for line in logs.pop_messages()] == [False, True]
    assert logs.pop_messages() == []
    logs.close()
    assert verify(path).damage == []


def test_the_operator_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "SCRUB_WAIT_US", 0)
    write_log(tmp_path, sample(160, size=1500))
    writer, _, close = opened(tmp_path, NO_LIMIT)
    position = fit(tmp_path, sample(160, size=1500))[2]
    spoil(tmp_path, position)
    events: list[Event] = []
    with structlog.testing.capture_logs() as logged:
        scrubbing = ScrubSchedule(writer.scrubber, events.append, structlog.get_logger())
        while not writer.scrubber.rounds:
            scrubbing.scrub()
    assert [line["finding"].endswith("was rebuilt") for line in logged] == [False, True]
    assert read_snapshot(str(tmp_path), position) is not None
    assert events == []
    close()
