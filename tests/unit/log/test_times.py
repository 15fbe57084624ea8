"""A time is found wherever in the log it is, at a cost that does not grow with what lies before it."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from random import Random

import pytest

from gateway.core.events import Scalars
from gateway.errors import Damaged
from gateway.log import catalog
from gateway.log.reader import LogReader
from tests.unit.log.history import History, decide, opened, write_log
from tests.unit.log.test_trimming import firsts, trimmed

BASE_US = 1_700_000_000_000_000
SPREAD_US = 1_000_000


def grow(history: History, chance: Random, batches: int) -> None:
    """More batches, each of whose times begins anywhere."""
    for number in range(batches):
        history.clock = BASE_US + chance.randrange(SPREAD_US)
        history.batch(f"p{number % 3}", "t", [b"x" * 300] * chance.randint(1, 9))


def found(history: History, time_us: int, begin: int = 0) -> int:
    """The offset of the first record at or after a time, looked for one by one."""
    later = (offset for offset, record in enumerate(history.records) if offset >= begin and record.timestamp >= time_us)
    return next(later, len(history.records))


def times(history: History, chance: Random) -> list[int]:
    some = chance.sample(history.records, 30)
    return [BASE_US - 1, BASE_US + 2 * SPREAD_US, *(record.timestamp + chance.randint(-1, 1) for record in some)]


def test_times_in_any_order_are_found_while_the_log_grows_and_begins_later(tmp_path: Path) -> None:
    """Proves it for a reader that stays open: segments join, lose their indexes, and go."""
    chance, history = Random(5), History()
    grow(history, chance, 60)
    write_log(tmp_path, history)
    with closing(LogReader(tmp_path)) as reader:
        for turn in range(4):
            if turn == 2:
                for index in (tmp_path / "log").glob("*.idx"):
                    index.unlink()
            for time_us in times(history, chance):
                assert reader.offset_for_time(time_us) == found(history, time_us)
            grow(history, chance, 30)
            write_log(tmp_path, history)
        for keep in (9, 3):
            _, begin = trimmed(tmp_path, history, keep)
            for time_us in times(history, chance):
                assert reader.offset_for_time(time_us) == found(history, time_us, begin)
    with closing(LogReader(tmp_path)) as reader:
        assert [reader.offset_for_time(time_us) for time_us in (0, BASE_US + 2 * SPREAD_US)] == [begin, len(history.records)]


def test_a_sealed_segment_is_asked_once_for_its_times(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Proves that the second time that is looked for costs no look at the segments before it."""
    chance, history = Random(6), History()
    grow(history, chance, 600)
    for number in range(3):
        history.clock = BASE_US + (2 + number) * SPREAD_US
        history.batch("p", "t", [b"late"])
    write_log(tmp_path, history)
    assert len(firsts(tmp_path)) > 20
    asked: list[int] = []
    header = catalog.sealed_header

    def noted(directory: str, first: int) -> object:
        asked.append(first)
        return header(directory, first)

    monkeypatch.setattr(catalog, "sealed_header", noted)
    with closing(LogReader(tmp_path)) as reader:
        assert reader.offset_for_time(BASE_US + 4 * SPREAD_US) == len(history.records) - 1
        asked.clear()
        for number in range(3):
            assert reader.offset_for_time(BASE_US + (2 + number) * SPREAD_US) == len(history.records) - 3 + number
        assert set(asked) == {firsts(tmp_path)[-1]}, "the one that is written alone"


def test_a_segment_that_goes_missing_under_an_open_reader_is_not_passed_over(tmp_path: Path) -> None:
    """Proves that what was once true of the segment behind one is asked anew, by one writer that goes on all the time."""
    history, done = History(), 0
    writer, _, close = opened(tmp_path)
    writer.write_scalars(Scalars(history.view_id, history.view_id, history.view_id))

    def write(batches: int) -> None:
        nonlocal done
        for _ in range(batches):
            history.clock += 1000
            history.batch("p", "t", [b"x" * 1500] * 3)
        while done < len(history.frames):
            end = min(done + 7, len(history.frames))
            writer.append(history.frames[done:end])
            writer.sync()
            decide(writer, history, done + 1, end)
            done = end

    write(60)
    with closing(LogReader(tmp_path)) as reader:
        assert reader.offset_for_time(history.clock + SPREAD_US) == len(history.records)
        lost = firsts(tmp_path)[-1]
        write(60)
        behind = firsts(tmp_path)[firsts(tmp_path).index(lost) + 1]
        wanted = history.records[history.offset_after(behind - 1) - 2].timestamp
        (tmp_path / "log" / f"{lost:020d}.seg").unlink()
        with pytest.raises(Damaged, match=f"where position {lost} must be"):
            reader.offset_for_time(wanted)
    close()
