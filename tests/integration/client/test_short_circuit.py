"""Tests of short-circuit reads with a real gateway: what comes from its files, and what is requested from it instead."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from tests.support.gateway_process import GatewayProcess
from tutti import Producer, limits
from tutti.common.gateway_url import Address, parse_url
from tutti.data.scan_request import ScanBatch, ScanRequest
from tutti.sources import short_circuit
from tutti.sources.flight import FlightSource
from tutti.sources.short_circuit import local_files_of, scan_local_first

COUNT = 600
_AS_NOBODY = """
import os, sys
from tutti.sources.short_circuit import _status, local_files_of as files_of
from tutti.common.gateway_url import parse_url
_status(parse_url(sys.argv[1])[0])  # all modules are loaded
if os.getuid() == 0:
    os.setgroups([]); os.setgid(65534); os.setuid(65534)
print(files_of(parse_url(sys.argv[1])[0], sys.argv[2]))
"""


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatewayProcess]:
    with GatewayProcess(tmp_path_factory.mktemp("nearby")) as running:
        fill(running)
        yield running


@pytest.fixture(autouse=True)
def _nothing_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(short_circuit, "_known", {})


def fill(running: GatewayProcess) -> None:
    """Frames of a hundred records each, of two topics in turn."""
    with Producer(running.url) as producer:
        for number in range(COUNT):
            producer.send("ab"[number // 100 % 2], b"%d" % number)
            if number % 100 == 99:
                producer.flush()


class Asked:
    """Gateways, and the start offsets of the requests to them."""

    def __init__(self, url: str) -> None:
        self.reads = FlightSource(url)
        self.log = self.reads.frontier().log
        self.addresses = parse_url(url)
        self.starts: list[int] = []

    def scan(self, request: ScanRequest) -> Iterator[ScanBatch]:
        self.starts.append(request.start)
        return self.reads.scan(request)

    def values(self, start: int, end: int, topics: list[str] | None = None) -> list[int]:
        request = ScanRequest(start, end, tuple(topics) if topics else None, ("value",), absent_ok=True)
        found = scan_local_first(self.addresses, self, self.log, request)  # type: ignore[arg-type]  # of a source only `scan` is asked
        return [int(row["value"]) for one in found for row in one.batch.to_pylist()]


def status(url: str, **other: object) -> Any:
    told = short_circuit._status(parse_url(url)[0])
    return lambda _: told | other


def test_records_come_from_the_files_and_no_gateway_is_asked_for_any(gateway: GatewayProcess) -> None:
    """Proves that ranges and topics are those of the gateway, and that it streams nothing."""
    asked = Asked(gateway.url)
    assert asked.values(0, COUNT) == list(range(COUNT))
    assert asked.values(150, 420) == list(range(150, 420))
    assert asked.values(150, 420, ["b"]) == [*range(150, 200), *range(300, 400)]
    assert asked.values(150, 420, ["never-sent"]) == []
    assert asked.starts == []


def test_undecided_records_are_not_read(gateway: GatewayProcess) -> None:
    """Proves that the files end at the frontier: a range beyond it is for the gateways to judge."""
    asked = Asked(gateway.url)
    with pytest.raises(ValueError, match=f"committed up to {COUNT}"):
        asked.values(COUNT - 10, COUNT + 1)
    assert asked.starts == [COUNT]


def test_only_the_gateways_own_directory_is_used(gateway: GatewayProcess, tmp_path: Path) -> None:
    """Proves that a copy, another gateway's, another log's and a directory that is not there are left alone."""
    address = parse_url(gateway.url)[0]
    log = Asked(gateway.url).log
    shutil.copytree(gateway.data, tmp_path / "copy", ignore=shutil.ignore_patterns("prepared-*", "*.tmp"))
    wrong: list[dict[str, object]] = [
        {"data": str(tmp_path / "copy")},  # what another container, or a restored backup, may have at the same path
        {"data": str(tmp_path / "none")},
        {"data": "relative"},
        {"gateway": "another"},
        {"log": "f" * 32},
    ]
    for told in wrong:
        short_circuit._known.clear()
        assert local_files_of(address, log, status(gateway.url, **told)) is None, told
        assert Asked(gateway.url).values(0, COUNT) == list(range(COUNT))
    short_circuit._known.clear()
    assert local_files_of(address, log, status(gateway.url)) is not None
    assert local_files_of(address, "f" * 32) is None


def test_a_gateway_that_does_not_answer_leaves_the_reading_to_others(gateway: GatewayProcess) -> None:
    """Proves that an address without a listener is not an error, and is not contacted again for each task."""
    asked = Asked(gateway.url)
    asked.addresses = [Address("127.0.0.1", 9)]  # discard: nobody is there
    assert asked.values(0, COUNT) == list(range(COUNT))
    assert asked.starts == [0]
    assert local_files_of(asked.addresses[0], asked.log, status(gateway.url)) is None


def test_files_that_another_user_may_not_read(gateway: GatewayProcess) -> None:
    """Proves that a directory without permission is not read, and raises nothing."""
    mode = gateway.data.stat().st_mode
    gateway.data.chmod(0o700 if os.getuid() == 0 else 0)
    try:
        told = [gateway.url, Asked(gateway.url).log]
        done = subprocess.run([sys.executable, "-c", _AS_NOBODY, *told], capture_output=True, text=True, timeout=60, check=False)
    finally:
        gateway.data.chmod(mode)
    assert (done.returncode, done.stdout.strip()) == (0, "None"), done.stderr
    assert "not reading the files of gateway" in done.stderr


def test_damage_and_a_directory_that_goes(tmp_path: Path) -> None:
    """Proves that the rest of a range is requested from a gateway if files are corrupt or deleted."""
    with GatewayProcess(tmp_path) as running:
        fill(running)
        asked = Asked(running.url)
        assert asked.values(0, COUNT) == list(range(COUNT))
        assert asked.starts == []

        asked.reads = Other()  # type: ignore[assignment]  # the same
        segment = min((running.data / "log").glob("*.seg"))  # one made ready may stand beside it
        data = bytearray(segment.read_bytes())
        place = data.index(b"398399")
        with segment.open("r+b") as file:
            file.seek(place)
            file.write(b"x")
        assert asked.values(0, COUNT) == list(range(COUNT))
        [start] = asked.starts
        assert 300 <= start <= 398, "what comes before the damaged frame is from the file"
        assert asked.values(0, 100) == list(range(100)), "the files are not tried again at once"
        assert asked.starts == [start, 0]

        short_circuit._known.clear()
        assert local_files_of(asked.addresses[0], asked.log) is not None
        running.data.rename(tmp_path / "away")
        assert asked.values(0, 100) == list(range(100))
        assert asked.starts == [start, 0, 0]


def test_foreign_files_are_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Proves that files are not read while their gateway is down, because a forced roster may have excluded it. A frozen gateway
    counts as running.
    """
    monkeypatch.setattr(limits, "LOCAL_FILES_RETRY_US", 0)
    with GatewayProcess(tmp_path) as running:
        fill(running)
        asked = Asked(running.url)
        asked.reads = Other()  # type: ignore[assignment]  # whoever is left
        assert asked.values(0, COUNT) == list(range(COUNT))
        running.signal(signal.SIGSTOP)
        assert asked.values(0, COUNT) == list(range(COUNT))
        assert asked.starts == []
        running.kill()
        assert asked.values(150, COUNT) == list(range(150, COUNT))
        assert asked.values(0, 100) == list(range(100))
        assert asked.starts == [150, 0]
        running.start()
        assert asked.values(0, COUNT) == list(range(COUNT))
        assert asked.starts == [150, 0]


class Other:
    """Another gateway that has all of it."""

    def scan(self, request: ScanRequest) -> Iterator[ScanBatch]:
        rows = [{"value": b"%d" % number} for number in range(request.start, request.end)]
        yield ScanBatch(pa.RecordBatch.from_pylist(rows), request.end)
