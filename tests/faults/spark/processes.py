"""The processes of a job: the driver, its executors, their Python workers; found from outside, ended by SIGKILL."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from benchmarks.figures import descendants
from tests.faults.spark.job import Task
from tests.support.processes import alive, expect_end
from tests.support.waiting import wait_until
from tutti.runtime.child_processes import end_with_this_process
from tutti_spark.launch import spark_environment

WAIT_S = 240.0
_EXECUTOR, _DAEMON, _PLANNER = b"CoarseGrainedExecutorBackend", b"pyspark.daemon", b"python_streaming_source_runner"


def command(pid: int) -> bytes:
    """What a process was started as, b"" when it has ended."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


def parent(pid: int) -> int:
    """Who started a process, 0 when it has ended."""
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    except OSError:
        return 0


class Job:
    """A job in processes of its own: a Python driver, Spark's JVM below it, whatever that starts. Its output goes to `log`."""

    def __init__(self, task: Task) -> None:
        """Nothing is started yet."""
        self.task = task
        self.log = Path(task.directory, "log")
        self.starts = 0
        self._process: subprocess.Popen[bytes] | None = None
        self._known: set[int] = set()  # every process that was seen below it

    @property
    def command(self) -> list[str]:
        """What Python is to run: a module, and its arguments."""
        return ["tests.faults.spark.job", self.task.text()]

    def start(self) -> None:
        """Start it, from its checkpoint if it has one."""
        Path(self.task.directory).mkdir(parents=True, exist_ok=True)
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", *self.command],
                env=os.environ | spark_environment(),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                preexec_fn=end_with_this_process(signal.SIGKILL),  # noqa: PLW1509 - it calls prctl(2) alone
            )
        self.starts += 1

    @property
    def runs(self) -> bool:
        """Whether its driver is there."""
        return self._process is not None and self._process.poll() is None

    @property
    def all(self) -> list[int]:
        """Process ids of all that it consists of, the driver's first."""
        assert self._process is not None
        found = [self._process.pid, *descendants(self._process.pid)]
        self._known.update(found)
        return found

    def executors(self) -> list[int]:
        """JVMs that run tasks: none with a local master, where the driver's does."""
        return [pid for pid in self.all if _EXECUTOR in command(pid) and b"java" in command(pid).split(b"\0")[0]]

    def workers(self) -> list[int]:
        """Python processes of tasks: those that pyspark's daemons forked."""
        daemons = {pid for pid in self.all if _DAEMON in command(pid)}
        return [pid for pid in daemons if parent(pid) in daemons]

    def planners(self) -> list[int]:
        """The driver's Python process that plans the query's micro-batches."""
        return [pid for pid in self.all if _PLANNER in command(pid)]

    def executor_of(self, worker: int) -> int:
        """The executor that a Python worker belongs to."""
        executors = set(self.executors())
        while worker and worker not in executors:
            worker = parent(worker)
        return worker

    def kill(self) -> None:
        """SIGKILL to the driver and all that belongs to it, all at once; what it started is gone when this returns."""
        pids = self.all
        end(*pids)
        assert self._process is not None
        self._process.wait()
        expect_end(*pids)

    def wait_end(self) -> None:
        """Wait until it ends by itself, as it should."""
        assert self._process is not None
        code = self._process.wait(WAIT_S)
        assert code == 0, self.tail()

    def wait_failed(self) -> None:
        """Wait until it ends by itself, with an error."""
        assert self._process is not None
        code = self._process.wait(WAIT_S)
        assert code != 0, "it ended as if nothing had happened"

    def until(self, happened: Callable[[], object], what: str) -> None:
        """Wait for an effect of the job; AssertionError with the end of its log if it ends before."""

        def checked() -> object:
            assert self.runs, f"waiting for {what}, the job ended: {self.tail()}"
            return happened()

        wait_until(checked, lambda: f"{what}: {self.tail()}", seconds=WAIT_S)

    def tail(self, characters: int = 4000) -> str:
        """The end of what it said."""
        return self.log.read_text("utf-8", "replace")[-characters:] if self.log.exists() else ""

    def __enter__(self) -> Job:
        """Itself; started by whoever uses it."""
        return self

    def __exit__(self, *_: object) -> None:
        """Whatever happened, leave no process behind."""
        if self.runs:
            self.kill()
        end(*(pid for pid in self._known if alive(pid) and _ours(pid)))


def _ours(pid: int) -> bool:
    return any(word in command(pid) for word in (_EXECUTOR, _DAEMON, _PLANNER, b"tests.faults.spark.", b"SparkSubmit"))


def end(*pids: int) -> None:
    """SIGKILL to each that is still there."""
    for pid in pids:
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            continue  # it ended meanwhile
