"""Tests of an upgrade under load from an older release to this one and back, gateway by gateway, also with keys: no record is lost,
duplicated or reordered, as docs/reference/formats.md promises. The older release is a commit of this repository, and its processes
run their own code.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from tests.support.gateway_process import GatewayProcess
from tests.support.running_group import NAMES, RunningGroup
from tutti.producer import Producer
from tutti.reader import Reader
from tutti_gateway.transport.keys import generate

pytestmark = [pytest.mark.soak, pytest.mark.faults, pytest.mark.timeout(600)]
ROOT = Path(__file__).resolve().parents[3]
#: The release that is upgraded from; another one by TUTTI_UPGRADE_FROM=COMMIT.
BEFORE = os.environ.get("TUTTI_UPGRADE_FROM", "b533aea")
#: The one for a group with keys: the last whose gateways encrypt by ZeroMQ.
BEFORE_WITH_KEYS = os.environ.get("TUTTI_UPGRADE_FROM", "c748bef0")
WAIT_S = 60.0
RECORDS_BETWEEN = 300  # that commit, at least, between two steps: while all are of one release, and while they are not


@pytest.fixture(params=[False, True], ids=["clear", "keys"])
def keyed(request: pytest.FixtureRequest) -> bool:
    """Whether the group has keys."""
    return bool(request.param)


@pytest.fixture
def older(keyed: bool, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The environment in which `python -m tutti_gateway` is the older release."""
    tree = tmp_path_factory.mktemp("older")
    release = BEFORE_WITH_KEYS if keyed else BEFORE
    archive = subprocess.run(["git", "archive", release], cwd=ROOT, stdout=subprocess.PIPE, check=True)
    subprocess.run(["tar", "--extract", "--directory", str(tree)], input=archive.stdout, check=True)
    assert (tree / "gateway/node/driver.py").read_bytes()
    # Those releases have other package names: `python -m gateway` is the command there.
    (tree / "tutti_gateway").mkdir()
    (tree / "tutti_gateway/__init__.py").touch()
    (tree / "tutti_gateway/__main__.py").write_text("import sys\nfrom gateway.cli.main import main\nsys.exit(main())\n")
    # Without the working directory on its path, which is this release's.
    return {"PYTHONPATH": str(tree), "PYTHONSAFEPATH": "1"}


def runs(gateway: GatewayProcess, environment: dict[str, str]) -> bool:
    """Return whether its process has the environment of a release, according to the kernel."""
    found = Path(f"/proc/{gateway.pid}/environ").read_bytes().split(b"\0")
    return (b"PYTHONSAFEPATH=1" in found) == bool(environment)


class Load:
    """A producer that continues through every failure, and its receipts."""

    def __init__(self, url: str, name: str) -> None:
        self.name = name
        self.receipts: list[int] = []
        self.error: BaseException | None = None
        self._url = url
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name=name)
        self._thread.start()

    def _run(self) -> None:
        try:
            with Producer(self._url, producer=self.name, delivery_timeout=WAIT_S) as producer:
                while not self._stop.is_set():
                    self.receipts.append(producer.send("load", f"{self.name} {len(self.receipts)}".encode()).result(WAIT_S))
        except BaseException as error:  # noqa: BLE001 - shown by the test's thread
            self.error = error

    def more(self, count: int) -> None:
        """Wait until so many more were acknowledged."""
        wanted, deadline = len(self.receipts) + count, time.monotonic() + WAIT_S
        while len(self.receipts) < wanted:
            if self.error is not None:
                raise self.error
            assert time.monotonic() < deadline, f"{self.name} has {len(self.receipts)} receipts, and {wanted} were waited for"
            time.sleep(0.01)

    def end(self) -> None:
        """Send nothing more."""
        self._stop.set()
        self._thread.join(WAIT_S)
        if self.error is not None:
            raise self.error


@contextmanager
def load(url: str) -> Iterator[list[Load]]:
    """Two producers, ended with the block."""
    loads = [Load(url, f"load-{number}") for number in (1, 2)]
    try:
        yield loads
    finally:
        for one in loads:
            one.end()


def until_all_vote(group: RunningGroup) -> None:
    """Wait until each gateway is in the view and connected to the others, as an operator does before the next one."""
    deadline = time.monotonic() + WAIT_S
    while True:
        status = [group.status(name) for name in group.all]
        if all(
            found["state"] == "primary"
            and len(found["view"]["members"]) == len(group.all)
            and all(peer["up"] for peer in found["transport"]["peers"])
            for found in status
        ):
            return
        assert time.monotonic() < deadline, status
        time.sleep(0.05)


def security_in(directory: Path) -> Callable[[str], str]:
    """Create keys, and return a function that gives the configuration of a gateway for them."""
    keys = directory / "keys"
    generate(keys, NAMES)
    return lambda name: f'[security]\nsecret_key = "{keys}/{name}.secret"\npublic_keys = "{keys}/group.keys"\n'


def change(group: RunningGroup, name: str, environment: dict[str, str]) -> None:
    """One gateway to another release: stopped in order, started on its directory."""
    gateway = group[name]
    assert gateway.stop() == 0, gateway.log_tail()
    gateway.placement = replace(gateway.placement, environment=environment)
    gateway.start()
    assert runs(gateway, environment)
    until_all_vote(group)


def test_a_group_is_upgraded_under_load_and_goes_back(keyed: bool, older: dict[str, str], tmp_path: Path) -> None:
    group = RunningGroup(tmp_path, each=security_in(tmp_path) if keyed else lambda _: "")
    for gateway in group.all.values():
        gateway.placement = replace(gateway.placement, environment=older)
    with group, load(group.url) as loads:
        until_all_vote(group)
        assert all(runs(gateway, older) for gateway in group.all.values())
        # The coordinator last, as the one that most depends on; then two back again.
        order = sorted(group.all, key=lambda name: name == group.coordinator().name)
        for name, environment in [*((name, {}) for name in order), *((name, older) for name in order[:2]), (order[0], {})]:
            for one in loads:
                one.more(RECORDS_BETWEEN)
            change(group, name, environment)
            assert [group.status(each)["transport"]["keys"] for each in group.all] == [keyed] * len(group.all)
        for one in loads:
            one.more(RECORDS_BETWEEN)
        old_client = [sys.executable, "-m", "tutti_gateway", "produce", "--topic", "old-client", "--url", group.url]
        said = subprocess.run(old_client, env={**os.environ, **older}, input="one\n", capture_output=True, text=True, check=False)
        assert said.returncode == 0, said.stderr

    for one in loads:
        with Reader(path=[str(gateway.data) for gateway in group.all.values()], topics=["load"], start=0) as reader:
            mine = [(record.offset, record.value) for record in reader.records() if record.producer == one.name]
        assert [value for _, value in mine] == [f"{one.name} {number}".encode() for number in range(len(mine))], "once, in order"
        assert [offset for offset, _ in mine][: len(one.receipts)] == one.receipts, "each where its receipt said"
        assert len(mine) == len(one.receipts)
    directories = [str(gateway.data) for gateway in group.all.values()]
    # One that is killed may not know yet that the last records are committed.
    end = min(json.loads(command({}, "log", "digest", directory, "--json"))["end"] for directory in directories)
    assert end > max(one.receipts[-1] for one in loads) - RECORDS_BETWEEN
    digests = {
        command(older if number else {}, "log", "digest", directory, "--end", str(end))
        for number, directory in enumerate(directories)
    }
    assert len(digests) == 1, "the same on each, by the tools of both releases"
    for gateway in group.all.values():
        command({}, "log", "verify", str(gateway.data))


def command(environment: dict[str, str], *arguments: str) -> str:
    """Run a command of a release, and return its output."""
    done = subprocess.run(
        [sys.executable, "-m", "tutti_gateway", *arguments],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=False,
        timeout=WAIT_S,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout
