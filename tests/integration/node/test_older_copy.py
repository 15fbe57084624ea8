"""Tests of an older copy of a gateway's directory, copied back into the original: it outvotes no other gateway, and records
acknowledged since then are waited for.
"""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.commands import WAIT_S, tutti
from tests.support.running_group import RunningGroup
from tests.support.waiting import wait_until
from tutti import Producer, Reader
from tutti.errors import TuttiError
from tutti.io.admin import AdminClient
from tutti.sources.flight import FlightSource

BEFORE, SINCE = 20, 50


def copy(source: Path, target: Path) -> None:
    """Run `cp -a SOURCE/. TARGET/`, which overwrites existing files. Repeat it if a listed file disappears, as short-lived files of
    a running gateway do.
    """
    target.mkdir(exist_ok=True)
    wait_until(lambda: subprocess.run(["cp", "-a", f"{source}/.", str(target)], check=False).returncode == 0)


def send(group: RunningGroup, first: int, count: int) -> None:
    with Producer(group.url, producer="p") as producer:
        receipts = [producer.send("t", b"%d" % number) for number in range(first, first + count)]
        assert [receipt.result(WAIT_S) for receipt in receipts] == [*range(first, first + count)]


def is_quiet(url: str) -> bool:
    """Return whether the log has everything that follows from the sent records: the last frame is the tick after them."""
    with FlightSource(url) as reads:
        return reads.tick_end(BEFORE - 1, BEFORE, BEFORE, 1) == BEFORE


def says(group: RunningGroup, name: str, wanted: Callable[[dict[str, object]], bool]) -> Callable[[], bool]:
    """Return whether the gateway answers with the expected state."""

    def look() -> bool:
        try:
            return wanted(group.status(name))
        except TuttiError:
            return False

    return look


@pytest.mark.parametrize(
    "running",
    [pytest.param(False, id="copied while stopped", marks=pytest.mark.soak), pytest.param(True, id="copied while running")],
)
def test_a_gateway_with_an_old_directory_waits_for_records_acknowledged_since(tmp_path: Path, running: bool) -> None:
    old = tmp_path / "old"
    with RunningGroup(tmp_path) as group:
        send(group, 0, BEFORE)
        if running:  # else the copy may hold a mark of what came behind the part of the log that it has: that is damage
            wait_until(lambda: is_quiet(group["g1"].url))
        else:
            assert group["g1"].stop() == 0
        copy(group["g1"].data, old)
        if not running:
            group["g1"].start()
        assert group["g3"].stop() == 0
        send(group, BEFORE, SINCE)  # g1 and g2 alone have them
        assert group["g1"].stop() == 0
        group["g2"].kill()
        copy(old, group["g1"].data)
        for name in ("g1", "g3"):
            group[name].start(wait=False)
        wait_until(says(group, "g1", lambda told: "tutti members replace g1" in str(told["reason"])))
        wait_until(says(group, "g3", lambda told: told["state"] == "minority"))
        assert "was restored from one" in group["g1"].log_tail(100_000)
        group["g2"].start()  # it and g3 are the majority
        with Reader(group["g2"].url, topics=["t"], columns=["value"]) as reader:
            assert [value for batch in reader for value in batch.column("value").to_pylist()] == [
                b"%d" % number for number in range(BEFORE + SINCE)
            ]
        done = tutti("members", "replace", "g1", "--timeout", str(WAIT_S), url=group["g2"].url)
        assert done.code == 0, done.err
        wait_until(says(group, "g1", lambda told: told["state"] == "primary"))
        with AdminClient(group["g1"].url, timeout=WAIT_S, learn=False) as control:
            assert control.status()["frontier"] == BEFORE + SINCE
