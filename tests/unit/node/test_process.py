"""Tests of the node's process: a log does not start without free disk space, and an orderly stop allows for its heartbeats."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from tutti import limits
from tutti.errors import DiskFull
from tutti.log.files.data_directory import open_directory
from tutti.log.files.layout import RESERVE
from tutti.log.files.options import LogOptions
from tutti.log.files.storage import Storage
from tutti_gateway.core.context import Context
from tutti_gateway.core.membership.leaving import OrderlyStop, Others
from tutti_gateway.core.view.peers import Peers
from tutti_gateway.node.process import check_free_space, stop_us_max

MIB = 1 << 20


class Small(Storage):
    """A disk with so much room."""

    def __init__(self, free: int) -> None:
        self.free = free

    def free_bytes(self, path: str) -> int:
        return self.free


def test_a_log_starts_only_with_free_space_for_its_first_segment(tmp_path: Path) -> None:
    storage = Small(39 * MIB)
    directory = open_directory(str(tmp_path), gateway="g", group="t", storage=storage)
    options = LogOptions(segment_bytes=128 * MIB, disk_low_bytes=256 * MIB)
    try:
        with pytest.raises(DiskFull, match=r"^39 MiB are free .* a new log needs 128 MiB, and accepting records needs 256 MiB"):
            check_free_space(directory, options)
        storage.free = 128 * MIB
        check_free_space(directory, options)
        storage.free = 0
        (tmp_path / RESERVE).write_bytes(b"")  # what a start set aside is room, too
        check_free_space(directory, options)
    finally:
        directory.close()


@pytest.mark.parametrize("heartbeat_ms", [10, 100, 1000, 4000, 10_000])
def test_a_stop_lasts_until_the_stack_waits_for_no_other_gateway_any_more(heartbeat_ms: int) -> None:
    identity, view_state = SimpleNamespace(gateway="g1"), SimpleNamespace()
    context = SimpleNamespace(identity=identity, view_state=view_state, window=None)
    leaving = OrderlyStop(cast("Context", context), cast("Peers", None), cast("Others", None))
    leaving.begin()
    beats = 0
    while not leaving.may_stop(out=False):
        leaving.beat()
        beats += 1
    assert stop_us_max(1000 * heartbeat_ms) > beats * 1000 * heartbeat_ms
    assert stop_us_max(1000 * heartbeat_ms) >= limits.STOP_US_MAX
