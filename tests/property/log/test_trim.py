"""Properties of trims: whatever is trimmed, and whatever indexes and live pages a reader finds, the rest of the log reads as
before.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.log.history import (
    History,
    decide,
    expected,
    no_change,
    no_indexes,
    opened,
    other_boot,
    sample,
    seen,
    settle,
    write_log,
)
from tutti.errors import OffsetOutOfRange
from tutti.log.files.layout import list_positions
from tutti.log.read.reader import LogReader
from tutti.log.read.scan import scan
from tutti_gateway.log.tools.verify import verify

STATES: list[Callable[[Path], None]] = [no_change, other_boot, no_indexes]


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A log of several segments."""
    path = tmp_path_factory.mktemp("trims") / "log"
    path.mkdir()
    write_log(path, sample(160, size=1500))
    return path


def trim(path: Path, history: History, position: int, batches: int) -> None:
    """Set the start of the log to a position, and continue."""
    end = len(history.frames)
    history.trim(position, history.offset_after(position - 1))
    for number in range(batches):
        history.batch("more", "more", [b"%d" % number * 300])
    writer, recovered, close = opened(path)
    assert recovered.state.position + len(recovered.tail) == end
    writer.append(history.frames[end:])
    writer.sync()
    decide(writer, history, end + 1, len(history.frames))
    settle(writer)
    close()


@pytest.mark.slow
@given(data=st.data())
@settings(max_examples=25)
def test_the_rest_of_a_trimmed_log_reads_as_before(written: Path, data: st.DataObject) -> None:
    path = written.parent / "copy"
    shutil.rmtree(path, ignore_errors=True)
    shutil.copytree(written, path)
    history = sample(160, size=1500)
    start = 0
    for _ in range(data.draw(st.integers(1, 3))):
        position = history.settled(data.draw(st.integers(2, len(history.frames)))) + 1
        trim(path, history, position, data.draw(st.integers(0, 40)))
        start = max(start, history.offset_after(position - 1))
        data.draw(st.sampled_from(STATES))(path)
        reader = LogReader(path)
        end = len(history.records)
        assert (reader.start, reader.frontier().offset) == (start, end)
        low = data.draw(st.integers(start, end))
        high = data.draw(st.integers(low, end))
        assert seen(scan(reader, low, high)) == expected(history, low, high)
        if start:
            with pytest.raises(OffsetOutOfRange, match=f"begins at {start}"):
                list(scan(reader, data.draw(st.integers(0, start - 1)), end))
    firsts = list_positions(str(path), "seg", include_trimmed=True)
    assert firsts[0] <= reader.state().start
    assert not verify(path).damage
