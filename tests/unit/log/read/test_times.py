"""A time is found wherever in the log it is, and what lies before it is asked once."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from random import Random

import pytest

from tests.unit.log.history import History, firsts, write_log
from tests.unit.log.written import Written
from tutti.errors import Damaged
from tutti.log.read import segment_view
from tutti.log.read.reader import LogReader

BASE_US = 1_700_000_000_000_000
SPREAD_US = 1_000_000


def batch(history: History, chance: Random, number: int) -> None:
    """A batch whose times begin anywhere."""
    history.clock = BASE_US + chance.randrange(SPREAD_US)
    history.batch(f"p{number % 3}", "t", [b"x" * 300] * chance.randint(1, 9))


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The segments whose index is opened for its header from now on."""
    noted: list[int] = []
    header = segment_view.sealed_header

    def note(directory: str, first: int) -> object:
        noted.append(first)
        return header(directory, first)

    monkeypatch.setattr("tutti.log.read.segment_catalog.sealed_header", note)
    return noted


def found(history: History, time_us: int, begin: int = 0) -> int:
    """The offset of the first record at or after a time, looked for one by one."""
    later = (offset for offset, record in enumerate(history.records) if offset >= begin and record.timestamp >= time_us)
    return next(later, len(history.records))


def times(history: History, chance: Random) -> list[int]:
    some = chance.sample(history.records, 30)
    return [BASE_US - 1, BASE_US + 2 * SPREAD_US, *(record.timestamp + chance.randint(-1, 1) for record in some)]


def test_times_in_any_order_are_found_while_the_log_grows_and_begins_later(tmp_path: Path, asked: list[int]) -> None:
    """Proves it for a reader that stays open: segments join, lose their indexes, and go."""
    chance, log = Random(5), Written(tmp_path)
    history, begin = log.history, 0
    for number in range(60):
        batch(history, chance, number)
    log.write()
    with closing(LogReader(tmp_path)) as reader:
        for turn in range(8):
            for time_us in times(history, chance):
                assert reader.offset_for_time(time_us) == found(history, time_us, begin)
            sealed = firsts(tmp_path)[:-1]
            asked.clear()
            reader.offset_for_time(BASE_US + 2 * SPREAD_US)
            assert not set(sealed) & set(asked), "what was asked once is known, and stays known while the log goes on"
            for number in range(30):
                batch(history, chance, number)
            log.write()
            if turn == 2:
                for index in sorted((tmp_path / "log").glob("*.idx"))[:3]:
                    index.unlink()
            if turn in (4, 6):
                begin = log.trim(6 - turn // 2)
    log.close()


def test_a_sealed_segment_is_asked_once_for_its_times(tmp_path: Path, asked: list[int]) -> None:
    """Proves that the second time that is looked for costs no look at the segments before it."""
    chance, history = Random(6), History()
    for number in range(600):
        batch(history, chance, number)
    for number in range(3):
        history.clock = BASE_US + (2 + number) * SPREAD_US
        history.batch("p", "t", [b"late"])
    write_log(tmp_path, history)
    assert len(firsts(tmp_path)) > 20
    with closing(LogReader(tmp_path)) as reader:
        assert reader.offset_for_time(BASE_US - 1) == 0
        assert set(asked) == {firsts(tmp_path)[0]}, "no more than has to be"
        assert reader.offset_for_time(BASE_US + 4 * SPREAD_US) == len(history.records) - 1
        asked.clear()
        for number in range(3):
            assert reader.offset_for_time(BASE_US + (2 + number) * SPREAD_US) == len(history.records) - 3 + number
        assert set(asked) == {firsts(tmp_path)[-1]}, "the one that is written alone"


def test_a_segment_that_goes_missing_under_an_open_reader_is_not_passed_over(tmp_path: Path) -> None:
    """Proves that what was once true of the segment behind one is asked anew."""
    log = Written(tmp_path)
    history = log.history

    def write() -> None:
        for _ in range(60):
            history.clock += 1000
            history.batch("p", "t", [b"x" * 1500] * 3)
        log.write()

    write()
    with closing(LogReader(tmp_path)) as reader:
        assert reader.offset_for_time(history.clock + SPREAD_US) == len(history.records)
        lost = firsts(tmp_path)[-1]
        write()
        behind = firsts(tmp_path)[firsts(tmp_path).index(lost) + 1]
        wanted = history.offset_after(behind - 1) - 2
        time_us = history.records[wanted].timestamp
        (tmp_path / "log" / f"{lost:020d}.seg").unlink()
        assert reader.offset_for_time(time_us) == wanted, "it has it mapped"
    with closing(LogReader(tmp_path)) as reader, pytest.raises(Damaged, match=rf"{lost:020d}\.seg is missing"):
        reader.offset_for_time(time_us)
    log.close()
