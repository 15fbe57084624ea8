"""Starts quarantine corrupt lanes: the newest few stay, and none is removed before its corrupt part is fetched again."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.unit.log.history import other_boot
from tests.unit.log.lane_history import OTHER, LaneHistory, opened, rot, sample, written
from tutti.data.lane_name import LaneName
from tutti.log.files.lane_paths import lane_path, list_lanes
from tutti_gateway.core import limits
from tutti_gateway.log.lanes.lane_recovery import quarantined_lanes

KEPT = limits.LANES_QUARANTINED_MAX
THIRD = LaneName(3, bytes(range(32, 48)))


def damage(path: Path, *histories: LaneHistory) -> None:
    """Corrupt each of these valid lanes below its decided end."""
    for history in histories:
        rot(Path(lane_path(str(path), history.lane)), history, 3, 20)
        other_boot(lane_path(str(path), history.lane))


def started(path: Path, *histories: LaneHistory) -> list[str]:
    """Start, which quarantines the lanes, and write the fetched frames; return the messages."""
    logs, found = opened(path)
    for history in histories:
        log = found[history.lane]
        begin = log.position + len(log.tail) + 1
        logs.persist(history.write(begin, 11))
        logs.sync()
        logs.decided(history.deliver(log.position + 1, 11))
    messages = logs.messages
    logs.close()
    return messages


def names(path: Path) -> list[str]:
    return [Path(one).name for one in quarantined_lanes(str(path))]


def both(path: Path) -> tuple[LaneHistory, LaneHistory]:
    """Two lanes of other gateways."""
    histories = sample(OTHER), sample(THIRD)
    for history in histories:
        written(path, history, 11)
    return histories


def test_the_newest_few_stay_and_each_removal_is_reported(tmp_path: Path) -> None:
    """Over all lanes together; other files and folders with similar names are not touched."""
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
        messages = started(tmp_path, history)
        after = names(tmp_path)
        all_names.append(after[-1])
        assert after == all_names[-KEPT:]
        assert len(messages) == 1 + len(set(before) - set(after))
        assert "fetched again" in messages[-1]
        for name in set(before) - set(after):
            assert f"{name}, a corrupt lane that an earlier start quarantined, was removed" in messages[0]
    assert len(set(all_names)) == 2 * KEPT
    assert all(path.exists() for path in beside)
    assert list_lanes(str(tmp_path)) == [OTHER, THIRD]
    assert started(tmp_path) == []


def test_a_start_does_not_remove_what_it_quarantined_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its corrupt part may not be fetched yet. The next start that quarantines a lane removes the excess."""
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


def test_a_failed_removal_is_reported_and_does_not_prevent_the_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "LANES_QUARANTINED_MAX", 1)
    history = both(tmp_path)[0]
    damage(tmp_path, history)
    started(tmp_path, history)
    damage(tmp_path, history)

    def refuse(path: str) -> None:
        raise PermissionError(13, "Permission denied", path)

    with monkeypatch.context() as patch:
        patch.setattr(shutil, "rmtree", refuse)
        messages = started(tmp_path, history)
    assert "cannot be removed" in messages[0]
    assert "Permission denied" in messages[0]
    assert names(tmp_path) == [f"{OTHER.text}.damaged-1", f"{OTHER.text}.damaged-2"]
    damage(tmp_path, history)
    assert len(started(tmp_path, history)) == 3
    assert names(tmp_path) == [f"{OTHER.text}.damaged-3"]


def test_an_interrupted_removal_continues_at_the_next_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its remains have the newest change time, but still the lowest number."""
    monkeypatch.setattr(limits, "LANES_QUARANTINED_MAX", 2)
    history = both(tmp_path)[0]
    for _ in range(2):
        damage(tmp_path, history)
        started(tmp_path, history)
    (tmp_path / "lanes" / f"{OTHER.text}.damaged-1" / "identity.json").unlink()
    damage(tmp_path, history)
    started(tmp_path, history)
    assert names(tmp_path) == [f"{OTHER.text}.damaged-2", f"{OTHER.text}.damaged-3"]
