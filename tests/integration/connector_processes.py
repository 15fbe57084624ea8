"""Connectors as processes, started as a user starts them, and the records in the log."""

from __future__ import annotations

import itertools
import json
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any, Self

from tutti.errors import UsageError
from tutti.reader import Reader
from tutti.runtime.child_processes import end_with_this_process

WAIT_S = 90.0
_numbers = itertools.count(1)


class Connected:
    """One instance of a connector."""

    def __init__(self, root: Path, command: str, configuration: str) -> None:
        """Write its configuration."""
        self.file = root / f"{command}-{next(_numbers)}.toml"
        self.file.write_text(configuration)
        self.log = self.file.with_suffix(".log")
        self.command = command
        self.process: subprocess.Popen[str] | None = None
        self.ready: dict[str, Any] = {}

    def start(self, *, wait: bool = True) -> Self:
        """Start it, and wait until it says that it is there."""
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
        """Until it says that it is there."""
        assert self.process is not None
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, self.told()
        self.ready = json.loads(line)

    def told(self) -> str:
        """Return its standard error."""
        return self.log.read_text()

    @property
    def runs(self) -> bool:
        """Whether its process has not ended."""
        return self.process is not None and self.process.poll() is None

    def send_signal(self, number: int) -> None:
        """To its process."""
        assert self.process is not None
        self.process.send_signal(number)

    def stands(self) -> bool:
        """Whether each of its threads is suspended: a system call that was begun is carried out before."""
        assert self.process is not None
        try:
            told = [(thread / "stat").read_text() for thread in Path(f"/proc/{self.process.pid}/task").iterdir()]
        except (FileNotFoundError, ProcessLookupError):
            return False  # one has just ended: it was not suspended
        return all(one.rpartition(")")[2].split()[0] == "T" for one in told)

    def wait(self) -> int:
        """Wait until it ends, and return its exit code."""
        assert self.process is not None
        try:
            return self.process.wait(WAIT_S)
        finally:
            if self.process.stdout is not None:
                self.process.stdout.close()

    def ended(self) -> tuple[int, str]:
        """Wait until it ends, and return its exit code and standard output."""
        assert self.process is not None
        assert self.process.stdout is not None
        said = self.process.stdout.read()
        return self.wait(), said

    def end(self, number: int = signal.SIGTERM) -> int:
        """End it; its exit code."""
        if self.runs:
            self.send_signal(signal.SIGCONT)
            self.send_signal(number)
        return self.wait()

    def measured(self) -> dict[str, float]:
        """Its metrics: "family{labels}" -> value."""
        with urllib.request.urlopen(self.ready["metrics"], timeout=WAIT_S) as page:  # noqa: S310 - its own page
            lines = page.read().decode().splitlines()
        return {name: float(value) for name, value in (line.rsplit(" ", 1) for line in lines if not line.startswith("#"))}

    def __enter__(self) -> Self:
        """Start it, unless that is done."""
        return self.start() if self.process is None else self

    def __exit__(self, *_: object) -> None:
        """End it, however it is."""
        if self.process is not None:
            self.end(signal.SIGKILL)
            self.process = None


def until(happened: Callable[[], object], what: Callable[[], str]) -> None:
    """Wait for something."""
    deadline = time.monotonic() + WAIT_S
    while not happened():
        assert time.monotonic() < deadline, f"waited {WAIT_S} s: {what()}"
        time.sleep(0.05)


def records(url: str, topic: str) -> list[dict[str, Any]]:
    """All records of a topic in the log."""
    try:
        with Reader(url, topics=[topic], start=0) as reader:
            return [row for batch in reader for row in batch.to_pylist()]
    except UsageError as error:
        if "there is no topic" in str(error):
            return []
        raise


def until_there(url: str, topic: str, count: int, *running: Connected) -> list[dict[str, Any]]:
    """The records of a topic as soon as there are `count` of them."""
    found: list[dict[str, Any]] = []

    def there() -> bool:
        nonlocal found
        for one in running:
            assert one.runs, one.told()
        found = records(url, topic)
        return len(found) >= count

    until(there, lambda: f"{len(found)} of {count} records; " + "".join(one.told()[-2000:] for one in running))
    return found
