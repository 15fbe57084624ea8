"""Proves that retention proposes no place above what a named reader of `keep_for` has committed, and says for whom it waits."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from tests.unit.log.history import SMALL, decide, opened, sample, write_log
from tutti.log.files.layout import list_positions

NOW_US = 1_900_000_000_000_000


def test_what_a_named_reader_has_not_read_stays_however_far_over_the_limit(tmp_path: Path) -> None:
    history = sample(400, size=1500)
    write_log(tmp_path, history)
    places = [(first, history.offset_after(first - 1)) for first in list_positions(str(tmp_path), "seg", include_trimmed=True)[1:]]
    options = replace(SMALL, retention_bytes=3 * SMALL.segment_bytes, keep_for=("archive", "query"))
    writer, _, close = opened(tmp_path, options)
    assert writer.retention.propose(NOW_US) is None  # who never said anything has read nothing
    held = writer.retention.blocked
    assert held is not None
    assert (held.reader, held.offset, held.bytes) == ("archive", 0, (len(places) - 2) * SMALL.segment_bytes)
    assert "waits for reader 'archive', which has committed offset 0" in held.message
    end = len(history.frames)
    history.offsets("archive", places[3][1])
    history.offsets("query", places[2][1] - 1)
    history.offsets("other", 0)
    writer.append(history.frames[end:])
    writer.sync()
    decide(writer, history, end + 1, end + 3)
    proposed = writer.retention.propose(NOW_US)
    assert proposed is not None
    assert proposed.places == tuple(places[:2])  # the third would take the record that the query reads next
    assert proposed.forced == places[1][0]
    assert writer.retention.blocked is not None
    assert (writer.retention.blocked.reader, writer.retention.blocked.offset) == ("query", places[2][1] - 1)
    end = len(history.frames)
    history.offsets("archive", places[-1][1])
    history.offsets("query", places[-1][1])
    writer.append(history.frames[end:])
    writer.sync()
    decide(writer, history, end + 1, end + 2)
    proposed = writer.retention.propose(NOW_US)
    assert proposed is not None
    assert len(proposed.places) > len(places) - 3
    assert writer.retention.propose(NOW_US) == proposed
    close()
