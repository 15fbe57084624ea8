"""Child processes of the demo. Each process has its own log file and process group, and never outlives the demo."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from tutti.errors import TuttiError
from tutti.runtime.child_processes import end_with_this_process

_TAIL_LINES = 3
_LINE_MAX = 400
_ERROR = re.compile(r"^error: |\b\w*(Error|Exception)\b")
_POLL_S = 0.1


class Failed(TuttiError):
    """A process of the demo ended too early, ended with an error, or did not end in time."""


class Running:
    """A process and its descendants, in a process group of their own, with standard output and error in files."""

    def __init__(self, name: str, command: Sequence[str], logs: Path, environment: Mapping[str, str] | None = None) -> None:
        """Start the process. A restarted process with the same name appends to the same files."""
        self.name = name
        self.may_end = False  # True if the process may end with exit code 0 before the other processes end
        self.output, self.errors = logs / f"{name}.out", logs / f"{name}.log"
        with self.output.open("ab") as output, self.errors.open("ab") as errors:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=errors,
                env=dict(environment) if environment is not None else None,
                start_new_session=True,
                preexec_fn=end_with_this_process(),  # noqa: PLW1509 - the demo starts processes from a single thread
            )
        self.pid = self._process.pid

    @property
    def code(self) -> int | None:
        """Return the exit code, or None while the process runs."""
        return self._process.poll()

    def expect_running(self) -> None:
        """Raise `Failed` if the process has ended. Exit code 0 is not an error if `may_end` is set."""
        if self.code is not None and not (self.may_end and self.code == 0):
            raise Failed(f"{self.name} ended with {self.code} too early; its last output: {self.last_output()}")

    def finish(self, limit_s: float) -> None:
        """Wait for the process to end.

        Raises:
            Failed: the process did not end in time, or its exit code is not 0.
        """
        try:
            code = self._process.wait(limit_s)
        except subprocess.TimeoutExpired:
            raise Failed(f"{self.name} did not end within {limit_s:.0f} s; its last output: {self.last_output()}") from None
        if code:
            raise Failed(f"{self.name} ended with {code}; its last output: {self.last_output()}")

    def kill(self) -> None:
        """Send SIGKILL to the process and its descendants."""
        self._signal(signal.SIGKILL)
        self._process.wait()

    def stop(self, limit_s: float) -> None:
        """Send SIGTERM to the process, and wait for its end.

        Raises:
            Failed: the process did not end in time, or its exit code is not 0.
        """
        self._process.terminate()
        self.finish(limit_s)

    def end(self) -> None:
        """End the process with SIGTERM, and then kill its remaining descendants."""
        if self.code is None:
            self._process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(10)
        self._signal(signal.SIGKILL)
        self._process.wait()

    def last_output(self) -> str:
        """Return the last output lines that contain an error, joined to one line. Without an error, return the last lines."""
        outputs = [file.read_text(errors="replace").strip().splitlines() for file in (self.output, self.errors)]
        errors = [line for lines in outputs for line in lines if _ERROR.search(line)]
        return " / ".join(line.strip()[:_LINE_MAX] for line in (errors or outputs[1])[-_TAIL_LINES:]) or "nothing"

    def _signal(self, number: int) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, number)


class ProcessGroup:
    """All processes of a run. The end of the `with` block ends every process."""

    def __init__(self, logs: Path) -> None:
        """Create an empty group, whose processes write their output to files in the directory `logs`."""
        self._logs = logs
        self._all: list[Running] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        for process in reversed(self._all):
            process.end()

    def start(self, name: str, command: Sequence[str], environment: Mapping[str, str] | None = None) -> Running:
        """Start a process."""
        process = Running(name, command, self._logs, environment)
        self._all.append(process)
        return process


def wait_until(happened: Callable[[], object], limit_s: float, what: str, alive: Sequence[Running]) -> None:
    """Wait until `happened()` returns true.

    Raises:
        Failed: `happened()` is not true after `limit_s` seconds, or a process in `alive` has ended.
    """
    deadline_s = time.monotonic() + limit_s
    while not happened():
        for process in alive:
            process.expect_running()
        if time.monotonic() > deadline_s:
            raise Failed(f"{what} did not happen within {limit_s:.0f} s; see the logs in {alive[0].errors.parent if alive else ''}")
        time.sleep(_POLL_S)
