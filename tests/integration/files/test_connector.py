"""Tests of the files connector with real gateways and killed processes: each row of the files is in the log once and in order."""

from __future__ import annotations

import contextlib
import itertools
import signal
import sqlite3
import time
from collections.abc import Iterator
from pathlib import Path
from random import Random

import orjson
import pytest

from tests.support.connector_process import ConnectorProcess, records, until_there
from tests.support.running_group import RunningGroup
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.faults, pytest.mark.slow, pytest.mark.timeout(300)]
_names = itertools.count(1)


@pytest.fixture(scope="module")
def group(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningGroup]:
    """Three gateways."""
    with RunningGroup(tmp_path_factory.mktemp("group")) as group:
        yield group


class Place:
    """A directory, a topic, and instances of a connector between them."""

    def __init__(self, root: Path, url: str, files: str) -> None:
        self.root, self.url, self.files = root, url, files
        self.name = f"f{next(_names)}"
        self.incoming = root / "incoming"
        self.incoming.mkdir()

    def instance(self, url: str = "") -> ConnectorProcess:
        text = (
            f'name = "{self.name}"\ngateways = "{url or self.url}"\nstate = "{self.root}/state"\nquarantine = "{self.root}/q"\n'
            f'topic = "{self.name}"\nmetrics = "127.0.0.1:0"\n'
            f'[files]\ndirectory = "{self.incoming}"\npoll_ms = 20\nquiet_ms = 0\n{self.files}\n'
        )
        return ConnectorProcess(self.root, "files", text)

    def put(self, name: str, data: bytes) -> None:
        """A file that is complete when it appears."""
        half = self.root / name
        half.write_bytes(data)
        half.rename(self.incoming / name)

    def freeze(self, instance: ConnectorProcess) -> None:
        """Suspend it, in a moment in which it does not keep the ledger from others: they would wait for it, as they should."""

        def outside() -> bool:
            instance.send_signal(signal.SIGSTOP)
            wait_until(instance.suspended, instance.errors)
            ledger = self.root / "state" / f"{self.name}.ledger"
            with contextlib.closing(sqlite3.connect(ledger, 0.0, isolation_level=None)) as base:
                try:
                    base.execute("BEGIN IMMEDIATE")
                    base.execute("ROLLBACK")
                except sqlite3.OperationalError:
                    instance.send_signal(signal.SIGCONT)
                    return False
            return True

        wait_until(outside, instance.errors)

    def values(self) -> list[bytes]:
        return [row["value"] for row in records(self.url, self.name)]


def kills(group: RunningGroup, tmp_path: Path, turns: int, rows: int, seed: int) -> None:
    """Files that come while the connector, or a gateway, is killed: the log is the files, once, in order."""
    chance = Random(seed)
    place = Place(tmp_path, group.url, 'format = "csv"\nafter = "delete"')
    wanted: list[bytes] = []
    instance = place.instance().start()
    try:
        for turn in range(turns):
            for part in range(chance.randint(1, 4)):
                numbers = range(len(wanted), len(wanted) + chance.randint(0, 2 * rows))
                text = "\n".join(["n,pad", *(f'{number},"{"x" * 60}\n"' for number in numbers)])
                place.put(f"{turn:04}-{part}.csv", text.encode())
                wanted += [orjson.dumps({"n": str(number), "pad": "x" * 60 + "\n"}) for number in numbers]
            time.sleep(chance.uniform(0.0, 0.3))
            if turn % 5 == 4:
                gateway = group[chance.choice(list(group.all))]
                gateway.kill()
                gateway.start()
            else:
                instance.end(signal.SIGKILL)
                instance.start(wait=chance.random() < 0.7)
        found = [row["value"] for row in until_there(place.url, place.name, len(wanted), instance)]
        wait_until(lambda: not list(place.incoming.iterdir()), lambda: f"files are left: {list(place.incoming.iterdir())}")
        assert instance.end() == 0, instance.errors()
    finally:
        instance.end(signal.SIGKILL)
    assert found == wanted


def test_killed_over_and_over_the_log_is_the_files(group: RunningGroup, tmp_path: Path) -> None:
    """Proves that instances and gateways which are killed at random leave each row in the log once, in order, and no file."""
    kills(group, tmp_path, 5, 4000, 3)


@pytest.mark.soak
@pytest.mark.timeout(1800)
def test_killed_many_times_the_log_is_the_files(group: RunningGroup, tmp_path: Path) -> None:
    """Proves the same for fifty kills."""
    kills(group, tmp_path, 50, 4000, 5)


def test_logs_that_grow_and_are_rotated_while_it_is_killed(group: RunningGroup, tmp_path: Path) -> None:
    """Proves that the lines of each log are in the log once, in the order in which they were written."""
    chance = Random(7)
    place = Place(tmp_path, group.url, 'format = "lines"\ngrows = true\npattern = "*.log*"')
    written: dict[str, list[bytes]] = {name: [] for name in "abc"}
    instance = place.instance().start()
    try:
        for turn in range(4):
            for name, lines in written.items():
                new = [b"%s %d" % (name.encode(), number) for number in range(len(lines), len(lines) + chance.randint(1, 2000))]
                with (place.incoming / f"{name}.log").open("ab") as file:
                    for line in new:
                        file.write(line + b"\n")
                lines += new
            if turn % 2 == 1:
                (place.incoming / "a.log").rename(place.incoming / f"a.log.{turn}")
            time.sleep(chance.uniform(0.0, 0.2))
            instance.end(signal.SIGKILL)
            instance.start(wait=chance.random() < 0.5)
        found = [row["value"] for row in until_there(place.url, place.name, sum(map(len, written.values())), instance)]
    finally:
        instance.end(signal.SIGKILL)
    assert {name: [value for value in found if value.startswith(name.encode())] for name in written} == written
    assert len(found) == sum(map(len, written.values()))


def test_a_second_one_takes_over_and_a_zombie_does_nothing(group: RunningGroup, tmp_path: Path) -> None:
    """Proves that an instance which was frozen while another took over is fenced when it wakes, and nothing is in the log twice."""
    place = Place(tmp_path, group.url, 'format = "lines"')
    place.put("1", b"".join(b"%d\n" % number for number in range(100_000)))
    first, second = place.instance().start(), place.instance()
    try:
        wait_until(lambda: records(place.url, place.name), first.errors)
        place.freeze(first)
        second.start()
        place.put("2", b"100000\n")
        until_there(place.url, place.name, 100_001, second)
        first.send_signal(signal.SIGCONT)
        place.put("3", b"100001\n")
        assert first.wait() == 1
        assert "Fenced" in first.errors() or "taken over" in first.errors() or "another instance" in first.errors()
        assert "Traceback" not in first.errors()
        until_there(place.url, place.name, 100_002, second)
        measured = second.measured()
    finally:
        first.end(signal.SIGKILL)
        second.end(signal.SIGKILL)
    assert place.values() == [b"%d" % number for number in range(100_002)]
    assert measured[f'tutti_files_flowing{{connector="{place.name}"}}'] == 1
    assert measured[f'tutti_files_files_total{{connector="{place.name}"}}'] >= 2


def test_a_bad_row_is_quarantined_and_counted(group: RunningGroup, tmp_path: Path) -> None:
    """Proves that a bad row is quarantined with its position, the others continue, and the metrics count both."""
    place = Place(tmp_path, group.url, "format = 'jsonl'\n[record]\nkey = 'k'\ntimestamp = 't'")
    place.put("a", b'{"k":"x","t":"2026-01-01T00:00:00Z"}\nno json\n{"k":"y","t":"never"}\n{"k":"z","t":"2026-01-02T00:00:00Z"}\n')
    with place.instance() as instance:
        first, second = until_there(place.url, place.name, 2, instance)
        label = f'{{connector="{place.name}"}}'
        wait_until(lambda: instance.measured()[f"tutti_files_files_total{label}"] == 1, instance.errors)
        measured = instance.measured()
    assert (first["key"], first["timestamp"].isoformat()) == (b"x", "2026-01-01T00:00:00+00:00")
    assert second["key"] == b"z"
    assert measured[f"tutti_files_quarantined{label}"] == 2
    assert measured[f"tutti_files_records_total{label}"] == 2
    told = sorted((tmp_path / "q").iterdir())
    assert [orjson.loads(path.read_bytes())["row"] for path in told] == [2, 3]
    assert "never" in told[1].read_text()


def test_the_reason_for_a_failed_start_is_reported(group: RunningGroup, tmp_path: Path) -> None:
    """Proves the exit codes: no gateway, no directory, a ledger that was lost."""
    place = Place(tmp_path, group.url, 'format = "lines"')
    (tmp_path / "nowhere").mkdir()  # of its own: it holds its ledger open while it looks for a gateway
    nowhere = Place(tmp_path / "nowhere", group.url, 'format = "lines"').instance("tutti://127.0.0.1:1")
    lost, gone = place.instance(), place.instance()
    with contextlib.ExitStack() as stack:
        for one in (nowhere, lost, gone):
            stack.push(one)
        nowhere.start(wait=False)
        _what_is_told(place, nowhere, lost, gone)


def _what_is_told(place: Place, nowhere: ConnectorProcess, lost: ConnectorProcess, gone: ConnectorProcess) -> None:
    place.put("a", b"1\n")
    with place.instance() as instance:
        until_there(place.url, place.name, 1, instance)
        assert instance.end() == 0
    (place.root / "state" / f"{place.name}.ledger").rename(place.root / "lost")
    lost.start(wait=False)
    assert lost.wait() == 2
    assert f"tutti producers forget {place.name}" in lost.errors()
    place.incoming.rename(place.root / "elsewhere")
    gone.start(wait=False)
    assert gone.wait() == 2
    assert "choose a readable directory" in gone.errors()
    assert nowhere.wait() == 3
    assert "connection refused" in nowhere.errors()
    for one in (nowhere, lost, gone):
        assert "Traceback" not in one.errors()
    assert place.values() == [b"1"]
