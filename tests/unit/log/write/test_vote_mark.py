"""Proves that the vote mark names what was learned as it names what was voted for, and the end of a state that replaces the log."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.unit.log.history import VIEW, decide, opened, other_boot, sample, settle, state_at
from tutti.data.hard_state import HardState
from tutti.log.files.layout import FRAMES_AT, list_positions
from tutti.log.files.options import LogOptions
from tutti.log.format.hard_state import read_hard_state
from tutti.log.format.vote_mark import VoteMark, newest_mark
from tutti_gateway.core.protocol.messages import Damage

OPTIONS = LogOptions(segment_bytes=1 << 20, prepared_segments=0, reserved_bytes=0, disk_low_bytes=0)
HISTORY = sample(60, voters=3)
LAST = len(HISTORY.frames)


def mark_of(path: Path) -> VoteMark:
    stored = read_hard_state(str(path))
    assert stored is not None
    return newest_mark(str(path), stored.mark, list_positions(str(path), "seg"))


@pytest.mark.parametrize("accepted", [0, VIEW - 1, VIEW], ids=["nothing", "an older view", "the view of the frames"])
def test_what_a_learner_holds_is_marked_whatever_view_it_has_accepted(tmp_path: Path, accepted: int) -> None:
    """A learner shows as decided what is durable here. Taken for torn, the damaged end of it would be shown no more."""
    decided = HISTORY.settled(20)
    writer, _, close = opened(tmp_path, OPTIONS)
    writer.write_hard_state(HardState(accepted, accepted, 0))
    writer.append(HISTORY.frames)
    writer.sync()
    decide(writer, HISTORY, 1, decided)
    settle(writer)
    close()
    other_boot(tmp_path)
    last = HISTORY.frames[-1]
    assert mark_of(tmp_path)[1:4] == (LAST, last.view, last.header_crc)
    (file,) = (tmp_path / "log").glob("*.seg")
    data = bytearray(file.read_bytes())
    data[FRAMES_AT + sum(frame.size for frame in HISTORY.frames[:-1]) + 5] ^= 1
    file.write_bytes(data)
    _, recovered, close = opened(tmp_path, OPTIONS)
    close()
    assert recovered.damage == Damage(LAST, LAST, last.view, last.header_crc)


def test_a_state_in_place_of_the_log_is_what_the_mark_names(tmp_path: Path) -> None:
    """The old log reached further, with frames that nobody decided. Their mark would name damage that is not there."""
    decided, position = HISTORY.settled(20), HISTORY.settled(40)
    other = HISTORY.branch(HISTORY.settled(30), 5)
    for number in range(40):
        other.batch("other", "t", [b"%d" % number])
    assert len(other.frames) > position
    writer, _, close = opened(tmp_path, OPTIONS)
    writer.append(other.frames)
    writer.sync()
    decide(writer, other, 1, decided)
    settle(writer)
    assert mark_of(tmp_path).position == len(other.frames)
    state = state_at(HISTORY, position)
    writer.replace(state.to_bytes())
    assert mark_of(tmp_path)[1:5] == (position, state.view, state.chain, position)
    close()
    other_boot(tmp_path)
    _, recovered, close = opened(tmp_path, OPTIONS)
    close()
    assert (recovered.state, recovered.tail, recovered.damage) == (state, (), None)
