"""One crash run: real producers, a real gateway killed at random moments, then every check from outside."""

from __future__ import annotations

import random
import subprocess
import sys
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa

from tests.faults.crash import checker
from tests.faults.crash.checker import Record
from tests.faults.crash.witness import Witness, read_witness
from tests.faults.group.evidence import read_lanes
from tests.faults.group.journal import BESIDE, lanes_journal, read_story
from tests.faults.group.lane_checker import check_lanes
from tests.support.gateway_process import GROWING, GatewayProcess
from tutti.data.scan_request import ScanRequest
from tutti.errors import TuttiError
from tutti.log.files.layout import list_positions
from tutti.sources.files import FileSource
from tutti.sources.flight import FlightSource
from tutti.sources.source import Source
from tutti_gateway.core import limits
from tutti_gateway.log.tools.digest import digest
from tutti_gateway.log.tools.verify import verify

COLUMNS = ("offset", "producer", "sequence", "value")
RATE = 400.0  # records a second of each producer
UNORDERED = "unordered"  # the producer that sends so: one of the group's tests, as it writes down all that lanes promise
WORKER_WAIT_S = 120.0
PRODUCERS = 2  # that send ordered records


@dataclass
class Report:
    """What a run did and found."""

    seed: int
    kills: int = 0
    kills_of_producers: int = 0
    records: int = 0
    acknowledged: int = 0
    beside: int = 0
    frontiers: int = 0
    segments: int = 0
    findings: list[str] = field(default_factory=list)

    def line(self) -> str:
        """One line for people."""
        return (
            f"seed {self.seed}: {self.kills} kills, {self.kills_of_producers} of producers, {self.records} records, "
            f"{self.acknowledged} acknowledged, {self.beside} unordered records acknowledged, {self.frontiers} frontiers read, "
            f"{self.segments} segments, {len(self.findings)} findings"
        )


def records_of(batches: list[pa.RecordBatch]) -> list[Record]:
    """Rows of batches of `COLUMNS`."""
    rows: list[Record] = []
    for batch in batches:
        columns = [batch.column(name).to_pylist() for name in COLUMNS]
        rows.extend(Record(*row) for row in zip(*columns, strict=True))
    return rows


class Follower:
    """A reader that lives through every crash; it remembers each frontier it was shown and all that it read.

    Each look is that of a new client: the gateway itself must never show less, not only the client that knows better.
    """

    def __init__(self, url: str) -> None:
        """Begin to follow."""
        self._url = url
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="follower")
        self.frontiers: list[int] = []
        self.records: list[Record] = []
        self.broken: list[str] = []
        self._thread.start()

    def _run(self) -> None:
        while not self._stop.is_set():
            try:
                with FlightSource(self._url, timeout=1.0, patience=1.0) as reads:
                    self.frontiers.append(reads.frontier().offset)
                    position = len(self.records)
                    if self.frontiers[-1] > position:
                        self.records += _read(reads, position, self.frontiers[-1])
            except TuttiError:
                self._stop.wait(0.05)  # the gateway is down: the same reader asks again
            except Exception as error:  # noqa: BLE001 - a finding, told at the end
                self.broken.append(f"C7: the following reader failed with {type(error).__name__}: {error}")
                return

    def close(self) -> None:
        """Stop following."""
        self._stop.set()
        self._thread.join()


class Producers:
    """Producer processes, started again when they were killed."""

    def __init__(self, url: str, root: Path, names: list[str]) -> None:
        """Start one for each name."""
        self._url, self._root = url, root
        self.processes = {name: self._start(name) for name in names}

    def witness_path(self, name: str) -> Path:
        """Where a producer writes down what it saw."""
        path = self._root / f"{name}.witness"
        return lanes_journal(path) if name == UNORDERED else path

    def _start(self, name: str) -> subprocess.Popen[bytes]:
        witness = str(self._root / f"{name}.witness")
        if name == UNORDERED:
            what = ["tests.faults.group.producer", self._url, name, "unordered", witness, str(RATE)]
        else:
            what = ["tests.faults.crash.worker", self._url, name, witness, "100000", str(RATE)]
        command = [sys.executable, "-m", *what]
        with (self._root / f"{name}.log").open("ab") as log:
            return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=log, stderr=log)

    def kill_one(self, name: str) -> None:
        """SIGKILL a producer and start it again under the same name."""
        self._end(name, kill=True)
        self.processes[name] = self._start(name)

    def wait_for_commits(self) -> None:
        """Wait until each one that still runs was told of a further commit: what comes before the first kill, and what follows the
        last one, is checked too.
        """
        deadline = time.monotonic() + WORKER_WAIT_S
        for name, process in self.processes.items():
            path = self.witness_path(name)
            size = path.stat().st_size if path.exists() else 0
            while process.poll() is None and time.monotonic() < deadline:  # who waits in vain is found by `finish`
                if path.exists() and b"\nc " in path.read_bytes()[max(size - 1, 0) :]:
                    break
                time.sleep(0.02)

    def finish(self) -> list[str]:
        """Have all of them wait for their answers and end; what went wrong."""
        for process in self.processes.values():
            assert process.stdin is not None
            process.stdin.close()
        findings = []
        for name, process in self.processes.items():
            try:
                code = process.wait(WORKER_WAIT_S)
            except subprocess.TimeoutExpired:
                findings.append(f"liveness: {name} got no answers within {WORKER_WAIT_S} s")
                self._end(name, kill=True)
                continue
            if code:
                tail = (self._root / f"{name}.log").read_text("utf-8", "replace")[-500:]
                findings.append(f"producer {name} ended with {code}: {tail}")
        return findings

    def _end(self, name: str, *, kill: bool) -> None:
        process = self.processes[name]
        if kill:
            process.kill()
        process.wait()
        if process.stdin is not None and not process.stdin.closed:
            process.stdin.close()

    def kill_all(self) -> None:
        """Leave none behind."""
        for name in self.processes:
            self._end(name, kill=True)


def crash_run(root: Path, seed: int, kills: int, *, growing: bool = False) -> Report:
    """Kill a gateway `kills` times under load, at moments that `seed` chooses, and check everything.

    Args:
        growing: the segments of the log start small and double in size.
    """
    chance = random.Random(seed)
    report = Report(seed)
    sizes = f"[log]\nsegment_bytes = {limits.SEGMENT_BYTES_MIN}\n{GROWING}" if growing else ""
    gateway = GatewayProcess(root, extra=sizes).start()
    names = [f"p{number}" for number in range(PRODUCERS)]
    workers = Producers(gateway.url, root, [*names, UNORDERED])
    follower = Follower(gateway.url)
    try:
        workers.wait_for_commits()
        while report.kills < kills:
            time.sleep(chance.uniform(0.05, 1.5))
            if chance.random() < 0.2:
                workers.kill_one(chance.choice([*names, UNORDERED]))
                report.kills_of_producers += 1
            gateway.kill()
            report.kills += 1
            time.sleep(chance.choice((0.0, 0.0, 0.3)))
            gateway.start(wait=False)
            while chance.random() < 0.3 and report.kills < kills:  # also while it starts
                time.sleep(chance.uniform(0.0, 1.0))
                gateway.kill()
                report.kills += 1
                gateway.start(wait=False)
            gateway.wait_ready()
        workers.wait_for_commits()
        report.findings += workers.finish()
        live = _read_live(gateway.url)
        follower.close()
        report.findings += follower.broken
        code = gateway.stop()
        if code:
            report.findings.append(f"the orderly stop ended with {code}: {gateway.log_tail(500)}")
    finally:
        follower.close()
        workers.kill_all()
        gateway.__exit__()
    _check(report, gateway.data, [read_witness(name, workers.witness_path(name)) for name in names], live, follower)
    _check_lanes(report, gateway, workers.witness_path(UNORDERED))
    return report


def _check_lanes(report: Report, gateway: GatewayProcess, witness: Path) -> None:
    story = read_story(BESIDE + UNORDERED, witness, unordered=True)
    report.beside = len(story.receipts())
    report.findings += check_lanes([story], [], read_lanes(gateway.name, gateway.data, {}), [gateway.name], ())


def _read_live(url: str) -> list[Record]:
    reads = FlightSource(url)
    try:
        return _read(reads, 0, reads.frontier().offset)
    finally:
        reads.close()


def _read(source: Source, start: int, end: int) -> list[Record]:
    return records_of([found.batch for found in source.scan(ScanRequest(start, end, columns=COLUMNS))])


def _check(report: Report, data: Path, witnesses: list[Witness], live: list[Record], follower: Follower) -> None:
    files = FileSource(str(data))
    replayed = _read(files, 0, files.frontier().offset)
    files.close()
    report.records = len(live)
    report.acknowledged = sum(len(witness.committed) for witness in witnesses)
    report.frontiers = len(follower.frontiers)
    report.segments = len(list_positions(str(data), "seg"))
    report.findings += checker.check(witnesses, live)
    report.findings += checker.monotone(follower.frontiers)
    report.findings += checker.same(live, replayed, "from the files")
    report.findings += checker.same(follower.records, live, "at the end")
    report.findings += [f"C5: {finding}" for finding in verify(data).damage]
    halves = [digest(data, 0, len(live) // 2), digest(data, len(live) // 2, len(live))]
    if sum(half.end - half.start for half in halves) != digest(data).end:
        report.findings.append(f"C8: the files end at {digest(data).end}, but {len(live)} records were read live")
