"""One run of the demo: a year of departures passes through a group of gateways to a Spark job, and checks follow.

The gateways run as in `tutti dev`, one for each airport, and restart when killed. Spark-submit runs the job `jobs/flights.py`.
Three producers, one for each airport, replay the year at a fixed rate. Each producer sends through its airport's gateway, or
through another gateway when its gateway is down. After the run, all gateways stop, and the checks read the log files and results.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from signal import SIGKILL
from typing import TYPE_CHECKING, Any, NamedTuple

import pyarrow as pa

from tutti.errors import Unavailable, UsageError
from tutti.runtime.durable_files import make_directory
from tutti_gateway.cli.common.output import count_text
from tutti_gateway.cli.demo.checks import (
    Check,
    Speed,
    check_logs,
    check_records,
    check_results,
    check_same,
    load_times,
    rows_of,
    speed,
)
from tutti_gateway.cli.demo.departures import AIRPORTS, Departures, load, weather_file
from tutti_gateway.cli.demo.gateways import addresses, url_from
from tutti_gateway.cli.demo.processes import Failed, ProcessGroup, Running, wait_until
from tutti_gateway.cli.demo.report_page import Kill, write_picture
from tutti_gateway.cli.demo.shared_progress import SharedProgress
from tutti_spark.jobs.departures import CLOSING_RECORD, TOPIC

if TYPE_CHECKING:
    from tutti_gateway.log.tools.digest import Digest

#: Maximum lead of one airport over another, in simulated minutes. The lead must stay below the job's watermark of 12 hours.
SKEW_MINUTES = 360
#: The demo kills the coordinator and the Spark query after these fractions of the simulated year.
KILL_GATEWAY_AT, KILL_QUERY_AT = 0.3, 0.6
READY_WAIT_S, QUERY_START_WAIT_S, DRAIN_WAIT_S, REPLAY_WAIT_S, STOP_WAIT_S = 60.0, 180.0, 300.0, 300.0, 60.0
SAME_WAIT_S = 30.0
PICTURE, REPORT = "demo.html", "demo.json"
_MARKER = ".tutti-demo"


class Plan(NamedTuple):
    """Parameters of a run.

    Attributes:
        directory: directory for all files of the run.
        port: base port of the first gateway.
        gateways: number of gateways.
        limit: number of departures to replay, from the start of the year, or None for all.
        year_s: duration of the replay, seconds.
    """

    directory: Path
    port: int
    gateways: int = 3
    limit: int | None = None
    year_s: float = 45.0


class Outcome(NamedTuple):
    """Results of a run."""

    checks: list[Check]
    speed: Speed
    digest: str
    log: str
    kills: list[Kill]
    seconds: float

    @property
    def held(self) -> bool:
        """True if all checks succeeded."""
        return all(check.held for check in self.checks)

    def fields(self) -> dict[str, object]:
        """Return the results as JSON fields."""
        return {
            "held": self.held,
            "checks": [check._asdict() for check in self.checks],
            "records": self.speed.records,
            "records_a_second": round(self.speed.records_a_second),
            "commit_ms": {"p50": self.speed.p50_ms, "p99": self.speed.p99_ms, "max": self.speed.max_ms},
            "digest": self.digest,
            "log": self.log,
            "seconds": round(self.seconds, 1),
        }


@contextmanager
def prepare_directory(directory: Path) -> Iterator[None]:
    """Create the directory, or remove the files of an earlier demo in it, and lock the directory until the block ends.

    Raises:
        UsageError: the directory contains files that do not come from a demo.
        Unavailable: another demo is running in the directory.
    """
    if directory.exists() and any(directory.iterdir()) and not (directory / _MARKER).exists():
        raise UsageError(f"{directory} holds files that are not from a demo: choose another directory with --data")
    make_directory(directory)
    # The lock is on the marker file, which is never deleted, so that all demos in the directory lock the same file.
    # Child processes do not inherit the descriptor (O_CLOEXEC), so the kernel releases the lock when this process ends.
    marker = os.open(directory / _MARKER, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        try:
            fcntl.flock(marker, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.read(marker, 32).decode("ascii", "replace").strip() or "unknown"
            raise Unavailable(
                f"another demo (process {holder}) runs in {directory}; wait for its end, or choose another --data"
            ) from None
        os.ftruncate(marker, 0)
        os.pwrite(marker, f"{os.getpid()}\n".encode(), 0)
        sweep(directory, keep=(_MARKER,))
        yield
    finally:
        os.close(marker)


def sweep(directory: Path, keep: Sequence[str]) -> None:
    """Delete everything in a demo's directory except the entries in `keep`."""
    for entry in directory.iterdir():
        if entry.name in keep:
            continue
        if entry.is_dir() and not entry.is_symlink():
            shutil.rmtree(entry)
        else:
            entry.unlink()


class Demo:
    """One run in a prepared directory. `report` receives a line for each step."""

    def __init__(self, plan: Plan, report: Callable[[str], None]) -> None:
        """Create the directories of the run. No process is started."""
        self._plan, self._report = plan, report
        self._directory = plan.directory.absolute()
        self._gateways = addresses(plan.gateways, plan.port)
        self._url = url_from("", self._gateways)
        self._killed = next(iter(self._gateways))
        self._kills: list[Kill] = []
        self._last_minute = 0
        self._started_s = time.monotonic()
        for name in ("input", "times", "logs", "tmp"):
            (self._directory / name).mkdir()

    def run(self) -> Outcome:
        """Run the whole demo, and return its outcome.

        Raises:
            Failed: a process ended too early, did not end in time, or ended with an error.
        """
        expected = load(self._plan.limit)
        for departures in expected:
            self._write_input(departures)
        total = sum(len(departures.values) for departures in expected)
        self._last_minute = max(departures.minutes[-1].as_py() for departures in expected)
        self._report(f"{total:,} departures of {len(expected)} airports are ready")
        with ProcessGroup(self._directory / "logs") as processes, SharedProgress(self._directory / "board") as shared_progress:
            gateways = self._start_gateways(processes)
            self._wait_ready(gateways)
            self._report(f"{count_text(len(self._gateways), 'gateway')} ready: {self._url}")
            query = self._start_query(processes)
            feeders = [self._start_feeder(processes, airport) for airport in AIRPORTS]
            wait_until(
                (self._directory / "checkpoint" / "metadata").exists,
                QUERY_START_WAIT_S,
                "the start of the Spark query",
                [query, gateways, *feeders],
            )
            self._report("the Spark query runs; the year begins")
            shared_progress.begin(time.monotonic_ns() // 1000)
            query = self._run_year(processes, shared_progress, gateways, query, feeders)
            self._send_closing_record()
            self._report("all departures are committed; the query finishes the last windows")
            query.finish(DRAIN_WAIT_S)
            wait_until(self._logs_end_equal, SAME_WAIT_S, "equal log ends at all gateways", [gateways])
            gateways.stop(STOP_WAIT_S)
            self._report(f"query and gateways have stopped; a batch job replays the log files of {self._killed}")
            replay = self._start_replay(processes)
            checks, digest = self._check_logs(expected)  # uses the second core while the replay runs
            self._report("the logs are checked; the replay is compared with the live result")
            self._finish_replay(replay)
        return self._conclude(checks, digest, total)

    @property
    def _data(self) -> Path:
        return self._directory / "gateways"

    def _run_year(
        self, processes: ProcessGroup, shared_progress: SharedProgress, gateways: Running, query: Running, feeders: list[Running]
    ) -> Running:
        """Replay the year, kill the coordinator and the query during it, wait for all commits, and return the restarted query."""

        def passed(part: float) -> Callable[[], bool]:
            return lambda: shared_progress.committed() >= part * self._last_minute

        limit_s = 3 * self._plan.year_s + READY_WAIT_S
        wait_until(passed(KILL_GATEWAY_AT), limit_s, "the first part of the year", [query, gateways, *feeders])
        self._killed, pid = self._coordinator()
        self._kill(f"the coordinator, {self._killed}," if len(self._gateways) > 1 else "the gateway", lambda: os.kill(pid, SIGKILL))
        ready_line = f"{self._killed} is ready again"
        wait_until(
            lambda: ready_line in gateways.errors.read_text(),
            READY_WAIT_S,
            "the killed gateway's second start",
            [gateways, query, *feeders],
        )
        self._report(f"{self._killed} is back after {(time.monotonic_ns() // 1000 - self._kills[-1].at_us) / 1e6:.1f} s")
        wait_until(
            lambda: passed(KILL_QUERY_AT)() and self._batches() >= 2,
            limit_s + DRAIN_WAIT_S,
            "batches of the query",
            [query, gateways],
        )
        batches = self._batches()
        self._kill("the query", query.kill)
        query = self._start_query(processes)
        self._report(f"it had finished {count_text(batches, 'batch', 'batches')}; it is started again")
        for feeder in feeders:
            feeder.finish(limit_s)
        return query

    def _kill(self, what: str, kill: Callable[[], None]) -> None:
        self._kills.append(Kill(what, time.monotonic_ns() // 1000))
        kill()
        self._report(f"{what} was killed with SIGKILL")

    def _batches(self) -> int:
        """Return the number of micro-batches that the query has finished, according to its checkpoint."""
        return len(list((self._directory / "checkpoint" / "commits").glob("[0-9]*")))

    def _coordinator(self) -> tuple[str, int]:
        """Return the name and the process id of the coordinator."""
        from tutti.io.admin import AdminClient

        with AdminClient(self._url) as control:
            name = str(control.status()["view"]["coordinator"])
        return name, int(self._status(name)["pid"])

    def _status(self, name: str) -> dict[str, Any]:
        """Return the status document of one gateway."""
        from tutti.io.admin import AdminClient

        with AdminClient(f"tutti://{self._gateways[name]}", learn=False) as control:
            return control.status()

    def _logs_end_equal(self) -> bool:
        """True if the logs of all gateways end at the same position. The last record must have been sent before this call."""
        try:
            return len({self._status(name)["position"] for name in self._gateways}) == 1
        except Unavailable:
            return False  # a gateway is restarting

    def _send_closing_record(self) -> None:
        """Send the record that marks the end of the input for the job."""
        from tutti.producer import Producer

        with Producer(self._url, producer="closing") as producer:
            producer.send(TOPIC, CLOSING_RECORD).result(timeout=READY_WAIT_S)

    def _start_replay(self, processes: ProcessGroup) -> Running:
        compared = ["--compare", str(self._directory / "live")]
        arguments = ["replay", "--path", str(self._data / self._killed), "--out", str(self._directory / "replay"), *compared]
        return self._start_spark(processes, "replay", arguments)

    def _finish_replay(self, replay: Running) -> None:
        try:
            replay.finish(REPLAY_WAIT_S)
        except Failed:
            # If the replay has written results, it failed only because they differ from the live results, which a check reports.
            if not (self._directory / "replay.jsonl").exists():
                raise

    def _check_logs(self, expected: Sequence[Departures]) -> tuple[list[Check], Digest]:
        """Check the log files of all gateways. Return the checks, and the digest of the killed gateway's log."""
        from tutti.data.scan_request import ScanRequest
        from tutti.sources.files import FileSource
        from tutti_gateway.log.tools.digest import digest
        from tutti_gateway.log.tools.verify import verify

        logs = {name: self._data / name for name in self._gateways}
        with FileSource([logs[self._killed]]) as files:
            frontier = files.frontier()
            request = ScanRequest(frontier.start, frontier.offset, (TOPIC,), ("key", "value"))
            checks = check_records((found.batch for found in files.scan(request)), expected, CLOSING_RECORD)
        sums = {name: digest(log) for name, log in logs.items()}
        checks += check_same({name: (each.end, each.sha256) for name, each in sums.items()})
        checks.append(check_logs({name: verify(log) for name, log in logs.items()}))
        return checks, sums[self._killed]

    def _conclude(self, checks: list[Check], digest: Digest, total: int) -> Outcome:
        """Compare the live results with those of the replay, and write the report page."""
        checks = checks + check_results(self._directory / "live.jsonl", self._directory / "replay.jsonl", total)
        times_us = load_times(self._directory / "times")
        outcome = Outcome(checks, speed(times_us), digest.sha256, digest.log, self._kills, time.monotonic() - self._started_s)
        write_picture(
            self._directory / PICTURE,
            f"{total:,} departures, {len(checks)} promises, {sum(check.held for check in checks)} held",
            checks,
            rows_of(self._directory / "live.jsonl"),
            times_us,
            outcome.speed,
            self._kills,
        )
        return outcome

    def _write_input(self, departures: Departures) -> None:
        table = pa.table({"minutes": departures.minutes, "value": departures.values})
        with pa.ipc.new_file(str(self._directory / "input" / f"{departures.airport}.arrow"), table.schema) as writer:
            writer.write_table(table)

    def _start_gateways(self, processes: ProcessGroup) -> Running:
        options = ["--count", str(len(self._gateways)), "--port", str(self._plan.port), "--data", str(self._data)]
        return processes.start("gateways", [sys.executable, "-m", "tutti_gateway.cli.demo.gateways", *options])

    def _wait_ready(self, gateways: Running) -> None:
        """Wait until the gateways have printed their ready line."""
        wait_until(lambda: gateways.output.read_bytes().endswith(b"\n"), READY_WAIT_S, "the gateways' start", [gateways])

    def _start_query(self, processes: ProcessGroup) -> Running:
        options = ["--gateways", self._url, "--checkpoint", str(self._directory / "checkpoint"), "--until-closed"]
        return self._start_spark(processes, "query", ["live", *options, "--out", str(self._directory / "live")])

    def _start_spark(self, processes: ProcessGroup, name: str, arguments: Sequence[str]) -> Running:
        from tutti_spark.launch import job, spark_environment, spark_submit

        local = str(self._directory / "tmp")
        settings = {"spark.local.dir": local, "spark.driver.memory": "1g", "spark.sql.warehouse.dir": f"{local}/warehouse"}
        # In short jobs, the C1 compiler and the serial collector need the least processor time: 30 s instead of 42 s.
        java = f"-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -Dderby.system.home={local}"
        settings["spark.driver.extraJavaOptions"] = java
        command = spark_submit(job("flights"), *arguments, "--weather", str(weather_file()), conf=settings)
        return processes.start(name, command, os.environ | spark_environment())

    def _start_feeder(self, processes: ProcessGroup, airport: str) -> Running:
        options = {
            "--url": url_from(airport, self._gateways),
            "--topic": TOPIC,
            "--airport": airport,
            "--input": str(self._directory / "input" / f"{airport}.arrow"),
            "--board": str(self._directory / "board"),
            "--times": str(self._directory / "times" / f"{airport}.npy"),
            "--minutes-a-second": str(self._last_minute / self._plan.year_s),
            "--skew-minutes": str(SKEW_MINUTES),
        }
        command = [sys.executable, "-m", "tutti_gateway.cli.demo.feeder"]
        feeder = processes.start(airport, command + [part for option in options.items() for part in option])
        feeder.may_end = True  # on a busy machine, a producer may finish its input before the killed gateway runs again
        return feeder
