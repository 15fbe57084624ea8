"""Proves that a log gives way to a snapshot of another one whole, or not at all, and goes on behind it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.unit.log.history import VIEW, History, decide, expected, opened, other_boot, sample, seen, settle, state_at, write_log
from tutti.data.hard_state import HardState
from tutti.data.log_state import LogState
from tutti.errors import Damaged, InvariantViolated, OffsetOutOfRange
from tutti.log.files.layout import list_positions, snapshot_path
from tutti.log.files.log_start import LogStart, read_start, write_start
from tutti.log.files.storage import Storage
from tutti.log.format.snapshot import read_snapshot
from tutti.log.read.reader import LogReader
from tutti.log.read.scan import scan
from tutti_gateway.core import limits
from tutti_gateway.log.tools.verify import verify
from tutti_gateway.log.writer import LogWriter


def behind(path: Path, history: History, decided: int, end: int) -> LogWriter:
    """A writer of the beginning of a history, decided up to a position."""
    writer, _, _ = opened(path)
    writer.write_hard_state(HardState(VIEW, VIEW, 0))
    for first in range(0, end, 7):
        writer.append(history.frames[first : min(first + 7, end)])
        writer.sync()
    if decided:
        decide(writer, history, 1, decided)
    settle(writer)
    return writer


def go_on(writer: LogWriter, history: History, position: int) -> None:
    """Write and decide what follows."""
    writer.append(history.frames[position:])
    writer.sync()
    decide(writer, history, position + 1, len(history.frames))
    settle(writer)


@pytest.mark.parametrize(("decided", "end"), [(0, 0), (0, 40), (30, 40), (30, 100), (30, 200)])
def test_the_log_goes_on_behind_the_snapshot_and_nothing_before_it_counts(tmp_path: Path, decided: int, end: int) -> None:
    history = sample(160, size=1500)
    position = history.settled(130)
    writer = behind(tmp_path, history, history.settled(decided) if decided else 0, end)
    reader = LogReader(tmp_path)
    reader.frontier()
    writer.replace(state_at(history, position).to_bytes())
    offset = history.offset_after(position)
    assert list_positions(str(tmp_path), "seg", include_trimmed=True) == [position + 1]
    assert read_start(str(tmp_path)) == LogStart(position + 1, offset)
    assert (reader.frontier().position, reader.frontier().offset, reader.start) == (position, offset, offset)
    assert reader.state() == state_at(history, position)
    go_on(writer, history, position)
    everything = expected(history, offset)
    assert seen(scan(reader, offset, len(history.records))) == everything
    with pytest.raises(OffsetOutOfRange, match=f"begins at {offset}"):
        list(scan(reader, offset - 1, offset))
    writer.close()
    other_boot(tmp_path)
    assert seen(scan(LogReader(tmp_path), offset, len(history.records))) == everything
    assert not verify(tmp_path).damage


def test_a_start_finds_the_replaced_log_before_anything_is_written_behind_it(tmp_path: Path) -> None:
    history = sample(160, size=1500)
    position = history.settled(130)
    writer, _, close = opened(tmp_path)
    state = state_at(history, position)
    writer.replace(state.to_bytes())
    close()
    other_boot(tmp_path)
    writer, recovered, close = opened(tmp_path)
    assert (recovered.state, recovered.tail, recovered.damage, recovered.log) == (state, (), None, state.log)
    go_on(writer, history, position)
    close()
    reader = LogReader(tmp_path)
    assert seen(scan(reader, reader.start, len(history.records))) == expected(history, reader.start)


def test_the_state_goes_to_others_piece_by_piece_as_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "FETCH_BYTES", 100)
    history = sample(160, size=1500)
    position = history.settled(130)
    writer, _, close = opened(tmp_path)
    assert writer.retention.read_snapshot(0, 0) == (0, 0, b"")
    state = state_at(history, position)
    writer.replace(state.to_bytes())
    data = b""
    while True:
        told, size, piece = writer.retention.read_snapshot(position if data else 0, len(data))
        assert told == position
        data += piece
        if len(data) == size:
            break
        assert len(piece) == 100
    assert LogState.from_bytes(data) == state
    assert writer.retention.read_snapshot(position - 1, 0) == (position - 1, 0, b"")
    close()


def test_less_than_is_decided_is_no_log(tmp_path: Path) -> None:
    history = sample(160, size=1500)
    position = history.settled(40)
    writer = behind(tmp_path, history, position, 60)
    with pytest.raises(InvariantViolated, match=f"ends at position {position}, but .* already decided up to {position}"):
        writer.replace(state_at(history, position).to_bytes())
    writer.close()


def test_a_replacement_cut_short_is_finished_by_the_next_start(tmp_path: Path) -> None:
    history = sample(160, size=1500)
    position = history.settled(130)
    write_log(tmp_path, history, decided=history.settled(30))
    writer, _, close = opened(tmp_path / "other")
    state = state_at(history, position)
    writer.replace(state.to_bytes())
    close()
    taken = snapshot_path(str(tmp_path / "other"), position + 1)
    Path(snapshot_path(str(tmp_path), position + 1)).write_bytes(Path(taken).read_bytes())
    write_start(str(tmp_path), LogStart(position + 1, state.next_offset, replacing=True), Storage())
    other_boot(tmp_path)
    writer, recovered, close = opened(tmp_path)
    assert (recovered.state, recovered.tail) == (state, ())
    assert recovered.scalars == HardState(VIEW, VIEW, VIEW)
    go_on(writer, history, position)
    close()
    assert not verify(tmp_path).damage
    assert read_start(str(tmp_path)) == LogStart(position + 1, state.next_offset)


def test_without_its_snapshot_a_replacement_is_no_log(tmp_path: Path) -> None:
    write_log(tmp_path, sample(30))
    write_start(str(tmp_path), LogStart(900, 5, replacing=True), Storage())
    assert read_snapshot(str(tmp_path), 900) is None
    with pytest.raises(Damaged, match=r"900\.snap, which replaces the log, is missing or corrupt"):
        opened(tmp_path)
