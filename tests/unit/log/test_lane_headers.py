"""A bad header of a lane's segment follows from the rest: the start writes it again, and the lane goes on whole."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.unit.log.history import other_boot
from tests.unit.log.lanes import OTHER, OWN
from tests.unit.log.test_lane_retention import SMALL, begun, kept, long
from tutti.data.lane_name import LaneName
from tutti.log.files.lane_paths import lane_path
from tutti.log.files.layout import list_positions, segment_path
from tutti.log.files.options import LogOptions
from tutti_gateway.core import limits
from tutti_gateway.core.protocol.actions import ReadLane
from tutti_gateway.log.tools.verify import verify


@pytest.mark.parametrize("options", [LogOptions(), SMALL], ids=["whole", "trimmed"])
@pytest.mark.parametrize("segments", [slice(-1, None), slice(0, 1), slice(None)], ids=["newest", "oldest", "all"])
@pytest.mark.parametrize("lane", [OWN, OTHER])
@pytest.mark.parametrize("byte", [2, 30])
def test_a_bad_header_of_a_lane_is_made_again_by_the_start(
    tmp_path: Path, lane: LaneName, segments: slice, options: LogOptions, byte: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "LANE_SEGMENT_BYTES", 32 << 10)
    monkeypatch.setattr(limits, "LANE_SEGMENT_BYTES_FIRST", 16 << 10)
    monkeypatch.setattr(limits, "RETENTION_CHECK_US", 0)
    history, path = long(lane), lane_path(str(tmp_path), lane)
    kept(tmp_path, history, options).close()
    newest = list_positions(path, "seg")[-1]
    files = [Path(segment_path(path, first)) for first in list_positions(path, "seg")[segments]]
    good = [file.read_bytes() for file in files]
    for file, data in zip(files, good, strict=True):
        file.write_bytes(data[:byte] + bytes([data[byte] ^ 1]) + data[byte + 1 :])
    other_boot(path)
    logs = begun(tmp_path, options)
    (log,) = begun(tmp_path, options).start()
    assert (log.position + len(log.tail), log.halted, logs.messages) == (201, "", [])
    assert list(logs.read(ReadLane(1, *lane, newest, newest + 1))) == history.frames[newest - 1 : newest + 1]
    while not logs.rounds:  # those that a start does not need are made again by the round
        logs.scrub()
    assert [file.read_bytes() for file in files] == good
    logs.close()
    assert verify(path).damage == []
