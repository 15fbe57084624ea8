"""Lanes on disk: what a start recovers, how many are open, and what happens to a corrupt one."""

from __future__ import annotations

import os
import shutil
import threading
from pathlib import Path

import pytest

from tests.unit.log.history import other_boot
from tests.unit.log.lane_history import OTHER, OWN, LaneHistory, Owner, file_position, opened, rot, sample, written
from tutti.data.frames.bodies import Voter
from tutti.data.lane_name import LaneName
from tutti.data.log_state import LogState, Producer
from tutti.errors import WrongDirectory
from tutti.log.files.data_directory import lock_directory
from tutti.log.files.lane_paths import lane_path, list_lanes
from tutti.log.files.layout import segment_path
from tutti.log.read.lane_reader import LaneEnd, last_known_end
from tutti_gateway.core import limits
from tutti_gateway.log.lanes.lane_logs import LaneLogs, LaneWriter


def test_a_directory_without_lanes_has_none(tmp_path: Path) -> None:
    logs, found = opened(tmp_path)
    logs.close()
    assert found == {}
    assert not (tmp_path / "lanes").exists()


@pytest.mark.parametrize("reboot", [False, True])
def test_a_start_recovers_the_decided_state_and_the_tail(tmp_path: Path, reboot: bool) -> None:
    history = sample(OTHER)
    written(tmp_path, history, 6)
    if reboot:
        other_boot(lane_path(str(tmp_path), OTHER))
    logs, found = opened(tmp_path)
    log = found[OTHER]
    assert (log.position, log.offset, log.chain, log.attempt) == (6, 10, history.frames[5].header_crc, 1)
    assert list(log.tail) == history.frames[6:]
    assert (log.lines, log.halted) == ({}, "")
    logs.close()


def test_the_own_lane_recovers_its_attempt_and_its_producers(tmp_path: Path) -> None:
    history = sample(OWN)
    logs, _ = opened(tmp_path)
    logs.persist(history.write(1, 0, attempt=1))
    logs.sync()
    logs.persist(history.write(1, 5))
    logs.persist(history.write(6, 5, attempt=7))
    logs.sync()
    logs.frontier(OWN, 5, history.offset(5))
    logs.decided(history.deliver(1, 5))
    logs.close()
    logs, found = opened(tmp_path)
    log = found[OWN]
    assert (log.attempt, log.position, log.offset, log.tail) == (7, 5, 8, ())
    assert log.lines == {1: (1, 4), 2: (1, 4)}
    logs.close()


@pytest.mark.parametrize(("position", "at"), [(1, 20), (3, 20), (6, 20), (8, 100), (11, 20), (9, None)])
def test_a_corrupt_lane_of_another_gateway_keeps_its_valid_part(tmp_path: Path, position: int, at: int | None) -> None:
    """The frame at `position` has other bytes, or, without `at`, the file ends before it."""
    history = sample(OTHER)
    written(tmp_path, history, 6)
    path = Path(lane_path(str(tmp_path), OTHER))
    if at is None:
        os.truncate(segment_path(str(path), 1), file_position(history, position))
    else:
        rot(path, history, position, at)
    other_boot(lane_path(str(tmp_path), OTHER))
    logs, found = opened(tmp_path)
    log = found[OTHER]
    assert log.position == min(6, position - 1)
    assert log.offset == history.offset(log.position)
    assert list(log.tail) == history.frames[log.position : position - 1]
    assert len(logs.messages) == 1
    assert "fetched again from the other gateways" in logs.messages[0]
    assert "log repair" not in logs.messages[0]
    assert Path(lane_path(str(tmp_path), OTHER) + ".damaged-1").is_dir()
    assert list_lanes(str(tmp_path)) == [OTHER]
    last = log.position + len(log.tail)
    logs.persist(history.write(last + 1, 11))
    logs.sync()
    logs.close()
    logs, found = opened(tmp_path)
    assert list(found[OTHER].tail) == history.frames[log.position :]
    assert logs.messages == []
    logs.close()


@pytest.mark.parametrize("what", ["corrupt from its start on", "gone", "all gone", "no identity", 0, 64, 5000])
def test_the_own_lane_is_halted_where_its_end_is_unknown(tmp_path: Path, what: str | int) -> None:
    """A number is the size of the segment file, which then holds no mark."""
    history = sample(OWN)
    written(tmp_path, history, 11)
    path = Path(lane_path(str(tmp_path), OWN))
    if isinstance(what, int):
        os.truncate(segment_path(str(path), 1), what)
    elif what == "corrupt from its start on":
        rot(path, history, 1, 20)
        other_boot(path)
    elif what == "no identity":
        (path / "identity.json").unlink()
    else:
        shutil.rmtree(path if what == "gone" else path.parent)
    logs, found = opened(tmp_path)
    assert "accepts no more records" in found[OWN].halted
    assert found[OWN].lost is None
    assert logs.messages == [found[OWN].halted]
    logs.close()
    if isinstance(what, str):  # the remaining files give a lower bound of the decided end
        known = {"corrupt from its start on": LaneEnd(11, history.offset(11))}
        assert last_known_end(str(path)) == known.get(what)


def test_the_lane_of_a_replaced_disk_is_not_the_own_lane(tmp_path: Path) -> None:
    written(tmp_path, sample(OWN), 11)
    logs, found = opened(tmp_path, incarnation=bytes(16))
    assert (found[OWN].position, found[OWN].lines, found[OWN].halted) == (11, {}, "")
    logs.close()


def test_the_number_of_open_lanes_is_limited(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "LANES_OPEN_MAX", 3)
    names = [OWN, *(LaneName(number, bytes([number]) * 16) for number in range(2, 8))]
    histories = [sample(name, 4) for name in names]
    logs, _ = opened(tmp_path)
    for history in histories:
        logs.persist(history.write(1, 3, attempt=1 if history.lane == OWN else None))
        logs.sync()
        assert len(logs._writers) <= 3
    for history in histories:
        logs.persist(history.write(4, 5))
        logs.sync()
        logs.frontier(history.lane, 5, history.offset(5))
        logs.decided(history.deliver(1, 5))
        assert len(logs._writers) <= 3
    logs.close()
    logs, found = opened(tmp_path)
    assert {lane: log.position for lane, log in found.items()} == dict.fromkeys(names, 5)
    assert len(logs._writers) <= 3
    logs.close()


def test_one_round_writes_more_lanes_than_may_be_open(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "LANES_OPEN_MAX", 3)
    names = [OWN, *(LaneName(number, bytes([number]) * 16) for number in range(2, 9))]
    histories = [sample(name, 4) for name in names]
    logs, _ = opened(tmp_path)
    for first, last in ((1, 3), (4, 5)):
        for history in histories:
            logs.persist(history.write(first, last))
            assert len(logs._writers) <= 3
        logs.sync()
    logs.close()
    for history in histories:
        other_boot(lane_path(str(tmp_path), history.lane))
    logs, found = opened(tmp_path)
    assert {lane: len(log.tail) for lane, log in found.items()} == dict.fromkeys(names, 5)
    assert logs.messages == []
    logs.close()


def test_the_frontier_is_published_while_another_lane_closes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The socket thread publishes it before any receipt, and must not wait for a disk."""
    monkeypatch.setattr(limits, "LANES_OPEN_MAX", 2)
    logs, _ = opened(tmp_path)
    own, others = sample(OWN, 4), [sample(LaneName(number, bytes([number]) * 16), 4) for number in (2, 3)]
    for history in (own, others[0]):
        logs.persist(history.write(1, 5))
        logs.sync()
    closes, shown = LaneWriter.close, list[bool]()

    def close(writer: LaneWriter) -> None:
        thread = threading.Thread(target=logs.frontier, args=(OWN, 5, own.offset(5)), daemon=True)
        thread.start()
        thread.join(20)
        shown.append(not thread.is_alive())
        closes(writer)

    with monkeypatch.context() as patched:
        patched.setattr(LaneWriter, "close", close)
        logs.persist(others[1].write(1, 5))
    assert shown == [True]
    logs.close()


def test_a_lane_deletes_producers_that_the_ordered_log_forgot(tmp_path: Path) -> None:
    """In a running gateway by a FORGET, and at a start by comparison with the ordered log."""
    history = LaneHistory(OWN)
    history.view()
    for producer in range(1, 9):
        history.batch(b"x", producer=producer)
    logs, _ = opened(tmp_path)
    logs.persist(history.write(1, 9, attempt=1))
    logs.sync()
    logs.frontier(OWN, 9, 8)
    logs.decided(history.deliver(1, 9))
    logs.forget([1, 2, 77])
    assert set(logs._writers[OWN]._indexer.state.producers) == {3, 4, 5, 6, 7, 8}
    logs.close()
    again = LaneLogs(Owner(str(tmp_path)))
    again.start(LogState(producers={number: Producer(f"p{number}", b"", 1, 0, b"") for number in (4, 5)}, next_producer=7))
    assert set(again._writers[OWN]._indexer.state.producers) == {4, 5, 7, 8}  # a shortened ordered log has not assigned 7 and 8 yet
    again.close()


def test_a_lane_under_an_earlier_number_is_fetched_like_any_other(tmp_path: Path) -> None:
    written(tmp_path, sample(OWN), 11)
    path = Path(lane_path(str(tmp_path), OWN))
    rot(path, sample(OWN), 9, 20)
    other_boot(path)
    logs = LaneLogs(Owner(str(tmp_path)))
    (log,) = logs.start(LogState(roster={7: Voter(7, "g1", OWN.incarnation, "127.0.0.1:1")}))
    assert (log.origin, log.position, log.halted) == (1, 8, "")
    logs.close()


def test_repair_refuses_a_lane(tmp_path: Path) -> None:
    """Positions of a truncated own lane would be assigned again; other lanes are fetched again without an operator."""
    written(tmp_path, sample(OWN), 11)
    with pytest.raises(WrongDirectory, match="is a lane"):
        lock_directory(lane_path(str(tmp_path), OWN))


def test_a_gateway_with_a_new_number_has_two_own_lanes(tmp_path: Path) -> None:
    """After a removal and an addition the new lane starts at attempt 1, and only the new lane must exist."""
    old, new = LaneHistory(OWN), LaneHistory(LaneName(9, OWN.incarnation))
    logs, _ = opened(tmp_path)
    for history, attempt in ((old, 7), (new, 1)):
        logs.persist(history.write(1, 0, attempt=attempt))
        logs.sync()
        history.attempt = attempt - 1
        history.view()
        logs.persist(history.write(1, 1))
        logs.sync()
        logs.frontier(history.lane, 1, 0)
        logs.decided(history.deliver(1, 1))
    logs.close()
    logs, found = opened(tmp_path)
    assert {lane.origin: (log.attempt, log.position) for lane, log in found.items()} == {1: (7, 1), 9: (1, 1)}
    logs.close()
    shutil.rmtree(lane_path(str(tmp_path), new.lane))
    shutil.rmtree(lane_path(str(tmp_path), old.lane))
    logs, found = opened(tmp_path)
    assert list(found) == [new.lane]
    assert "is missing" in found[new.lane].halted
    logs.close()
