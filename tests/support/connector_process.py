"""A connector as a process, started as a user starts it, and the records that it wrote."""

from __future__ import annotations

import itertools
import json
import signal
import subprocess
import sys
import urllib.request
from pathlib import Path
from typing import Any, Self

from tests.support.waiting import wait_until
from tutti.errors import UsageError
from tutti.reader import Reader
from tutti.runtime.child_processes import end_with_this_process

WAIT_S = 90.0
_numbers = itertools.count(1)


class ConnectorProcess:
    """`tutti connect COMMAND` with a configuration file. Standard error goes to `log`."""

    def __init__(self, root: Path, command: str, configuration: str) -> None:
        """Write the configuration."""
        self.file = root / f"{command}-{next(_numbers)}.toml"
        self.file.write_text(configuration)
        self.log = self.file.with_suffix(".log")
        self.command = command
        self.process: subprocess.Popen[str] | None = None
        self.ready: dict[str, Any] = {}

    def start(self, *, wait: bool = True) -> Self:
        """Start the process and, if `wait`, wait for its ready line."""
        with self.log.open("a") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "tutti_gateway", "connect", self.command, "--config", str(self.file)],
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                preexec_fn=end_with_this_process(signal.SIGKILL),  # noqa: PLW1509 - it calls prctl(2) alone
            )
        if wait:
            self.wait_ready()
        return self

    def wait_ready(self) -> None:
        """Wait for the ready line."""
        assert self.process is not None
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, self.errors()
        self.ready = json.loads(line)

    def errors(self) -> str:
        """Return its standard error so far."""
        return self.log.read_text()

    @property
    def runs(self) -> bool:
        """True if the process has not ended."""
        return self.process is not None and self.process.poll() is None

    def send_signal(self, number: int) -> None:
        """Send a signal to the process."""
        assert self.process is not None
        self.process.send_signal(number)

    def suspended(self) -> bool:
        """True if each thread is suspended: after SIGSTOP a thread first completes its system call."""
        assert self.process is not None
        try:
            states = [(thread / "stat").read_text() for thread in Path(f"/proc/{self.process.pid}/task").iterdir()]
        except (FileNotFoundError, ProcessLookupError):
            return False  # a thread has just ended, so it was not suspended
        return all(one.rpartition(")")[2].split()[0] == "T" for one in states)

    def wait(self) -> int:
        """Wait until the process ends and return the exit code."""
        assert self.process is not None
        try:
            return self.process.wait(WAIT_S)
        finally:
            if self.process.stdout is not None:
                self.process.stdout.close()

    def ended(self) -> tuple[int, str]:
        """Wait until the process ends and return the exit code and standard output."""
        assert self.process is not None
        assert self.process.stdout is not None
        output = self.process.stdout.read()
        return self.wait(), output

    def end(self, number: int = signal.SIGTERM) -> int:
        """Send a signal that ends the process and return the exit code."""
        if self.runs:
            self.send_signal(signal.SIGCONT)
            self.send_signal(number)
        return self.wait()

    def measured(self) -> dict[str, float]:
        """Return its metrics: "family{labels}" -> value."""
        with urllib.request.urlopen(self.ready["metrics"], timeout=WAIT_S) as page:  # noqa: S310 - its own page
            lines = page.read().decode().splitlines()
        return {name: float(value) for name, value in (line.rsplit(" ", 1) for line in lines if not line.startswith("#"))}

    def __enter__(self) -> Self:
        """Start the process if it was not started."""
        return self.start() if self.process is None else self

    def __exit__(self, *_: object) -> None:
        """Kill the process."""
        if self.process is not None:
            self.end(signal.SIGKILL)
            self.process = None


def records(url: str, topic: str) -> list[dict[str, Any]]:
    """Return all records of a topic in the log; none if there is no such topic."""
    try:
        with Reader(url, topics=[topic], start=0) as reader:
            return [row for batch in reader for row in batch.to_pylist()]
    except UsageError as error:
        if "has no topic" in str(error):
            return []
        raise


def until_there(url: str, topic: str, count: int, *running: ConnectorProcess) -> list[dict[str, Any]]:
    """Wait until a topic has `count` records and return them; AssertionError if a connector ends before."""
    found: list[dict[str, Any]] = []

    def there() -> bool:
        nonlocal found
        for one in running:
            assert one.runs, one.errors()
        found = records(url, topic)
        return len(found) >= count

    wait_until(there, lambda: f"{len(found)} of {count} records; " + "".join(one.errors()[-2000:] for one in running))
    return found
