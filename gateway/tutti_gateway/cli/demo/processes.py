"""The processes of the demo: each with its log, killed whole when it is to be killed, and gone when the demo is."""

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
from tutti.runtime.child_processes import ending_with_this

_TAIL_LINES = 3
_LINE_MAX = 400
_ERROR = re.compile(r"^error: |\b\w*(Error|Exception)\b")
_LOOK_S = 0.1


class Failed(TuttiError):
    """A process of the demo ended when it should not have, or a check did not hold."""


class Running:
    """A process and its descendants, in a group of their own; standard output and error go to files."""

    def __init__(self, name: str, command: Sequence[str], logs: Path, environment: Mapping[str, str] | None = None) -> None:
        """Start it; several of one name write to the same files."""
        self.name = name
        self.may_end = False  # with 0, before the others
        self.output, self.errors = logs / f"{name}.out", logs / f"{name}.log"
        with self.output.open("ab") as output, self.errors.open("ab") as errors:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=errors,
                env=dict(environment) if environment is not None else None,
                start_new_session=True,
                preexec_fn=ending_with_this(),  # noqa: PLW1509 - the demo starts processes from its one thread only
            )
        self.pid = self._process.pid

    @property
    def code(self) -> int | None:
        """Its exit code, None while it runs."""
        return self._process.poll()

    def expect_running(self) -> None:
        """Raises `Failed` when it has ended, unless it may and did so well."""
        if self.code is not None and not (self.may_end and self.code == 0):
            raise Failed(f"{self.name} ended with {self.code} before its time; it said: {self.last_words()}")

    def finish(self, limit_s: float) -> None:
        """Wait for its end.

        Raises:
            Failed: it did not end in time, or not with 0.
        """
        try:
            code = self._process.wait(limit_s)
        except subprocess.TimeoutExpired:
            raise Failed(f"{self.name} did not end within {limit_s:.0f} s; it said: {self.last_words()}") from None
        if code:
            raise Failed(f"{self.name} ended with {code}; it said: {self.last_words()}")

    def kill(self) -> None:
        """SIGKILL it and its descendants, at whatever they are doing."""
        self._signal(signal.SIGKILL)
        self._process.wait()

    def stop(self, limit_s: float) -> None:
        """Ask it to end, and wait for that.

        Raises:
            Failed: it did not end in time, or not with 0.
        """
        self._process.terminate()
        self.finish(limit_s)

    def end(self) -> None:
        """Make sure that nothing of it is left."""
        if self.code is None:
            self._process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(10)
        self._signal(signal.SIGKILL)
        self._process.wait()

    def last_words(self) -> str:
        """What it said last about an error, else what it said last at all, on one line."""
        said = [file.read_text(errors="replace").strip().splitlines() for file in (self.output, self.errors)]
        errors = [line for lines in said for line in lines if _ERROR.search(line)]
        return " / ".join(line.strip()[:_LINE_MAX] for line in (errors or said[1])[-_TAIL_LINES:]) or "nothing"

    def _signal(self, number: int) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, number)


class Household:
    """All processes of a run: none is left when the block ends, however it ends."""

    def __init__(self, logs: Path) -> None:
        """`logs`: where each one's output goes."""
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
    """Wait until `happened()` is true.

    Raises:
        Failed: it was not within `limit_s`, or one of `alive` ended meanwhile.
    """
    deadline_s = time.monotonic() + limit_s
    while not happened():
        for process in alive:
            process.expect_running()
        if time.monotonic() > deadline_s:
            raise Failed(f"{what} did not happen within {limit_s:.0f} s; logs tell more: {alive[0].errors.parent if alive else ''}")
        time.sleep(_LOOK_S)
