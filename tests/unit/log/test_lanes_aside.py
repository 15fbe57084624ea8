"""Damaged lanes that starts set aside: how many stay, and that none goes before what is not good of it was fetched again."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.unit.log.history import other_boot
from tests.unit.log.lanes import OTHER, LaneHistory, opened, sample, written
from tests.unit.log.test_lanes import rot
from tutti.data.lane_name import LaneName
from tutti.log.files.lane_paths import lane_path, list_lanes
from tutti_gateway.core import limits
from tutti_gateway.log.lanes.lane_recovery import quarantined_lanes

KEPT = limits.LANES_QUARANTINED_MAX
THIRD = LaneName(3, bytes(range(32, 48)))


def damage(path: Path, *histories: LaneHistory) -> None:
    """Each lane of a directory, whole until now, fails below what was decided of it."""
    for history in histories:
        rot(Path(lane_path(str(path), history.lane)), history, 3, 20)
        other_boot(lane_path(str(path), history.lane))


def started(path: Path, *histories: LaneHistory) -> list[str]:
    """A start that sets the lanes aside, and then learns them again; what it told."""
    logs, found = opened(path)
    for history in histories:
        log = found[history.lane]
        begin = log.position + len(log.tail) + 1
        logs.persist(history.write(begin, 11))
        logs.sync()
        logs.decided(history.deliver(log.position + 1, 11))
    told = logs.messages
    logs.close()
    return told


def names(path: Path) -> list[str]:
    return [Path(aside).name for aside in quarantined_lanes(str(path))]


def both(path: Path) -> tuple[LaneHistory, LaneHistory]:
    """Two lanes of others."""
    histories = sample(OTHER), sample(THIRD)
    for history in histories:
        written(path, history, 11)
    return histories


def test_the_newest_few_stay_and_what_goes_is_told(tmp_path: Path) -> None:
    """Whichever lanes they are of; what may stand beside them under such a name is left alone."""
    histories = both(tmp_path)
    all_names = []
    beside = [tmp_path / "lanes" / name for name in ("notes.damaged-1", f"{OTHER.text}.damaged-", f"{OTHER.text}.damaged-2")]
    for path in beside[:2]:
        path.mkdir()
    beside[2].write_text("a file of somebody")
    for number in range(2 * KEPT):
        history = histories[number % 2]
        damage(tmp_path, history)
        before = names(tmp_path)
        told = started(tmp_path, history)
        after = names(tmp_path)
        all_names.append(after[-1])
        assert after == all_names[-KEPT:]
        assert len(told) == 1 + len(set(before) - set(after))
        assert "fetched again" in told[-1]
        for name in set(before) - set(after):
            assert f"{name}, a corrupt lane that an earlier start quarantined, was removed" in told[0]
    assert len(set(all_names)) == 2 * KEPT
    assert all(path.exists() for path in beside)
    assert list_lanes(str(tmp_path)) == [OTHER, THIRD]
    assert started(tmp_path) == []


def test_a_start_removes_nothing_that_it_set_aside_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is not good of it may be nowhere else yet. The next start that sets one aside removes what is too many then."""
    monkeypatch.setattr(limits, "LANES_QUARANTINED_MAX", 1)
    histories = both(tmp_path)
    damage(tmp_path, histories[0])
    started(tmp_path, histories[0])
    damage(tmp_path, *histories)
    assert len(started(tmp_path, *histories)) == 3
    assert names(tmp_path) == [f"{OTHER.text}.damaged-2", f"{THIRD.text}.damaged-3"]
    damage(tmp_path, histories[0])
    assert len(started(tmp_path, histories[0])) == 3
    assert names(tmp_path) == [f"{OTHER.text}.damaged-4"]


def test_one_that_cannot_be_removed_is_told_and_keeps_no_gateway_from_starting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "LANES_QUARANTINED_MAX", 1)
    history = both(tmp_path)[0]
    damage(tmp_path, history)
    started(tmp_path, history)
    damage(tmp_path, history)

    def refuse(path: str) -> None:
        raise PermissionError(13, "Permission denied", path)

    with monkeypatch.context() as patch:
        patch.setattr(shutil, "rmtree", refuse)
        told = started(tmp_path, history)
    assert "cannot be removed" in told[0]
    assert "Permission denied" in told[0]
    assert names(tmp_path) == [f"{OTHER.text}.damaged-1", f"{OTHER.text}.damaged-2"]
    damage(tmp_path, history)
    assert len(started(tmp_path, history)) == 3
    assert names(tmp_path) == [f"{OTHER.text}.damaged-3"]


def test_a_removal_that_was_interrupted_goes_on_at_the_next_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is left of it changed last and is the oldest even so."""
    monkeypatch.setattr(limits, "LANES_QUARANTINED_MAX", 2)
    history = both(tmp_path)[0]
    for _ in range(2):
        damage(tmp_path, history)
        started(tmp_path, history)
    (tmp_path / "lanes" / f"{OTHER.text}.damaged-1" / "identity.json").unlink()
    damage(tmp_path, history)
    started(tmp_path, history)
    assert names(tmp_path) == [f"{OTHER.text}.damaged-2", f"{OTHER.text}.damaged-3"]
