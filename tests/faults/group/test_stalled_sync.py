"""Tests of a group of real gateways in which one disk stalls, is slow or fails while one record follows another.

The socket thread syncs such records. Heartbeats and answers continue, the group keeps its view as long as with a disk thread, and
each record is in the log once.
"""

from __future__ import annotations

import dataclasses
import errno
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.faults.lab.shim import Shim, build
from tests.support.running_group import NAMES, RunningGroup
from tests.support.waiting import wait_until
from tutti import Producer, Reader
from tutti_gateway.core import limits

pytestmark = [pytest.mark.faults, pytest.mark.slow, pytest.mark.lab]

HEARTBEAT_S = 0.1  # of the preset "local"
VOTE_S = 2.0  # time without a vote after which a member leaves the view, of the same preset
SILENT_S = limits.BOOT_HEARTBEATS * HEARTBEAT_S
SECOND = 1_000_000
#: Python runs this module in each gateway: the disk counts as fast although other tests use it too.
EAGER = """from tutti_gateway.core import limits
limits.INLINE_FAST_SYNCS, limits.INLINE_FAST_US = 4, 10_000
"""


class Sender(threading.Thread):
    """Sends one record after the other, each after the receipt of the one before."""

    def __init__(self, url: str) -> None:
        super().__init__(daemon=True)
        self.sent = self.acknowledged = 0
        self.offsets: list[int] = []
        self.trouble: BaseException | None = None
        self._url, self._over = url, False
        self.start()

    def run(self) -> None:
        try:
            with Producer(self._url, producer="p", delivery_timeout=150) as producer:
                while not self._over:
                    self.sent += 1
                    self.offsets.append(producer.send("t", b"%d" % self.sent).result(150))
                    self.acknowledged += 1
        except BaseException as error:  # noqa: BLE001 - raised in the test's thread
            self.trouble = error

    def more(self, count: int = 50) -> None:
        """Wait for so many further receipts."""
        goal = self.acknowledged + count
        wait_until(lambda: self.trouble or self.acknowledged >= goal, lambda: f"{self.acknowledged} of {goal}")
        assert self.trouble is None, self.trouble

    def end(self) -> None:
        """Send no more."""
        self._over = True
        self.join(150)
        assert self.trouble is None, self.trouble


class Disks:
    """A group on disks that the test spoils, with a sender."""

    def __init__(self, group: RunningGroup, shims: dict[str, Shim]) -> None:
        self.group, self.shims = group, shims
        self.sender = Sender(group.url)
        self.sender.more()

    def inline(self, name: str) -> dict[str, int]:
        """The counters of syncs in the socket thread."""
        counters: dict[str, int] = self.group.status(name)["disk"]["inline"]
        return counters

    def wait_inline(self, name: str) -> dict[str, int]:
        """Wait until the socket thread syncs; its counters."""
        syncs = self.inline(name)["syncs"]
        wait_until(lambda: self.inline(name)["syncs"] > syncs)
        return self.inline(name)

    def view(self, name: str) -> Any:
        """The id of the view, as one gateway knows it."""
        return self.group.status(name)["view"]["id"]

    def pick(self, who: str) -> str:
        """The coordinator, or another member."""
        coordinator = self.group.coordinator().name
        return coordinator if who == "coordinator" else next(name for name in NAMES if name != coordinator)

    def stall(self, name: str, seconds: float) -> float:
        """Make one sync in the socket thread last so long; the time (monotonic, s) at which it began, at the latest."""
        before = self.wait_inline(name)["takeovers"]
        self.shims[name].set("loop_delay_us", int(seconds * SECOND))
        at, began = -1, time.monotonic()
        while self.sender.acknowledged != at:
            at, began = self.sender.acknowledged, time.monotonic()
            time.sleep(0.15)
        self.shims[name].set("loop_delay_us", 0)
        wait_until(lambda: self.inline(name)["takeovers"] > before)
        return began

    def heard_us(self, name: str) -> int:
        """The longest time since one of the others has heard a gateway."""
        heard = 0
        for other in NAMES:
            if other != name:
                found = {member["name"]: member for member in self.group.status(other)["members"]}
                heard = max(heard, found[name]["heard_us"])
        return heard

    def together(self) -> bool:
        """Whether all gateways are in one primary view."""
        told = [self.group.status(name) for name in NAMES]
        return len({(status["view"]["id"], status["state"]) for status in told}) == 1 and told[0]["state"] == "primary"

    def check_records(self) -> None:
        """Each record stands in the log once, in its order and at its offset."""
        self.sender.end()
        with Reader(self.group.url, columns=["value", "offset"]) as reader:
            table = reader.to_arrow()
        values, offsets = table.column("value").to_pylist(), table.column("offset").to_pylist()
        assert values == [b"%d" % number for number in range(1, self.sender.sent + 1)]
        assert offsets == self.sender.offsets


@pytest.fixture
def disks(tmp_path: Path) -> Iterator[Disks]:
    library = build(tmp_path)
    (tmp_path / "sitecustomize.py").write_text(EAGER)
    group = RunningGroup(tmp_path)
    shims = {name: Shim(library, tmp_path / f"{name}.shim") for name in NAMES}
    for name, gateway in group.all.items():
        environment = {**shims[name].environment, "PYTHONPATH": str(tmp_path)}
        gateway.placement = dataclasses.replace(gateway.placement, environment=environment)
    with group:
        yield Disks(group, shims)
    for shim in shims.values():
        shim.close()


@pytest.mark.parametrize("who", ["coordinator", "member"])
def test_a_stall_of_a_second_stops_neither_heartbeats_nor_answers_and_changes_no_view(disks: Disks, who: str) -> None:
    name = disks.pick(who)
    view = disks.view(name)
    for stalls in (1, 2):  # the second stall hits the thread that has relieved the first one
        began = disks.stall(name, 1.5)
        answers = 0
        while time.monotonic() < began + 1.3:
            asked = time.monotonic()
            assert disks.heard_us(name) < SILENT_S * SECOND
            assert disks.group.status(name)["undecided"]["frames"] > 0
            answers += 1
            assert time.monotonic() - asked < 1, "the gateway answers while its disk stalls"
        assert answers > 1
        disks.sender.more()
        assert disks.inline(name)["takeovers"] >= stalls
    assert {disks.view(other) for other in NAMES} == {view}
    disks.check_records()


@pytest.mark.timeout(400)
@pytest.mark.parametrize("seconds", [10, pytest.param(60, marks=pytest.mark.soak)])
@pytest.mark.parametrize("who", ["coordinator", "member"])
def test_the_group_continues_without_a_long_stalled_disk_and_takes_its_gateway_back(disks: Disks, who: str, seconds: int) -> None:
    name = disks.pick(who)
    others = [other for other in NAMES if other != name]
    view = disks.view(name)
    began = disks.stall(name, seconds)
    disks.sender.more(1)
    left_s = time.monotonic() - began
    assert left_s > VOTE_S - 2 * HEARTBEAT_S, "it was given up for its missing votes, not for silence"
    assert left_s < seconds + 1, "the others continue without it"
    assert disks.view(others[0]) != view
    while time.monotonic() < began + seconds - 0.5:
        assert disks.heard_us(name) < SILENT_S * SECOND
        assert disks.group.status(name)["gateway"] == name
        disks.sender.more(5)
    wait_until(disks.together)
    disks.sender.more()
    disks.check_records()


@pytest.mark.parametrize("who", ["coordinator", "member"])
def test_a_slow_disk_is_synced_by_the_disk_thread(disks: Disks, who: str) -> None:
    name = disks.pick(who)
    view, before = disks.view(name), disks.wait_inline(name)
    disks.shims[name].set("sync_delay_us", 50_000)
    disks.sender.more(3)
    slow = disks.inline(name)
    disks.sender.more(40)
    after = disks.inline(name)
    assert after == slow, "no record is synced by the socket thread"
    assert after["takeovers"] <= before["takeovers"] + 1
    disks.shims[name].set("sync_delay_us", 0)
    disks.sender.more()
    wait_until(lambda: disks.inline(name)["syncs"] > after["syncs"])
    assert {disks.view(other) for other in NAMES} == {view}
    disks.check_records()


@pytest.mark.parametrize("what", ["sync_errno", "write_errno"])
@pytest.mark.parametrize("who", ["coordinator", "member"])
def test_a_failed_disk_halts_its_gateway_and_the_others_continue(disks: Disks, who: str, what: str) -> None:
    name = disks.pick(who)
    disks.shims[name].set(what, errno.EIO)
    wait_until(lambda: disks.group.status(name)["state"] == "halted")
    assert "Input/output error" in disks.group.status(name)["disk"]["failed"]
    disks.sender.more()
    disks.group[name].kill()
    disks.shims[name].calm()
    disks.group[name].start()
    wait_until(disks.together)
    disks.sender.more()
    disks.check_records()


@pytest.mark.parametrize("signals", [1, 2])
@pytest.mark.parametrize("who", ["coordinator", "member"])
def test_a_stop_while_a_sync_stalls_ends_the_process(disks: Disks, who: str, signals: int) -> None:
    name = disks.pick(who)
    disks.stall(name, 300)
    gateway = disks.group[name]
    asked = time.monotonic()
    gateway.signal(signal.SIGTERM)
    wait_until(lambda: "stopping: no new records are accepted" in gateway.log_tail(), seconds=5)
    if signals == 2:
        gateway.signal(signal.SIGTERM)
        assert gateway.wait_end(10) == 0
    else:
        gateway.wait_end((limits.DISK_STOP_US_MAX / SECOND) + 35)
    assert "the disk hangs: the gateway exits without waiting for it" in gateway.log_tail()
    assert time.monotonic() - asked < (8 if signals == 2 else limits.DISK_STOP_US_MAX / SECOND + 32)
    disks.sender.more()
    gateway.start()
    wait_until(disks.together)
    disks.check_records()
