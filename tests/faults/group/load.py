"""Producers and readers of a group under test: started on the clients' host, killed now and then, ended in order."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from gateway.children import ending_with_this
from tests.faults.group.journal import Story, View, read_story, read_view

END_WAIT_S = 120.0
LOOK_S = 0.02
#: name -> kind, of the producers.
PRODUCERS = {"plain-0": "plain", "narrow-0": "narrow", "progress-0": "progress"}


class Load:
    """The clients of one run.

    Args:
        root: for journals and logs.
        before: what is put before a command so that it runs on the clients' host.
        url: of the group.
        readers: urls, one reader each.
        rate: records a second of each producer.
    """

    def __init__(self, root: Path, before: Sequence[str], url: str, readers: Sequence[str], rate: float) -> None:
        """Nothing runs yet."""
        self._root = root
        self._before = before
        self._url = url
        self._readers = readers
        self._rate = rate
        self._places: dict[str, int] = {}
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        self.killed = 0

    def _run(self, name: str, *command: str) -> None:
        with (self._root / f"{name}.log").open("ab") as log:
            self.processes[name] = subprocess.Popen(
                [*self._before, sys.executable, "-m", *command],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                start_new_session=True,
                preexec_fn=ending_with_this(9),  # noqa: PLW1509 - it calls prctl(2) alone
            )

    def journal(self, name: str) -> Path:
        """Where a client writes down what it sees."""
        return self._root / f"{name}.journal"

    def _produce(self, name: str) -> None:
        kind, journal = PRODUCERS[name], str(self.journal(name))
        self._run(name, "tests.faults.group.producer", self._url, name, kind, journal, str(self._rate))

    def start(self) -> None:
        """Start all of them."""
        for name in PRODUCERS:
            self._produce(name)
        if self._readers:
            self._run("readers", "tests.faults.group.follower", str(self.journal("readers")), *self._readers)

    def kill(self, name: str) -> None:
        """SIGKILL a producer and start it again under the same name."""
        self._end(name, kill=True)
        self._produce(name)
        self.killed += 1

    def _end(self, name: str, *, kill: bool) -> int:
        process = self.processes[name]
        if kill:
            process.kill()
        code = process.wait()
        if process.stdin is not None and not process.stdin.closed:
            process.stdin.close()
        return code

    def wait_for_receipts(self, timeout_s: float, names: Sequence[str] = tuple(PRODUCERS)) -> list[str]:
        """Wait until each producer was told of a further commit; those that were not in time."""
        since = time.monotonic_ns()
        waiting = list(names)
        while waiting and time.monotonic_ns() - since < timeout_s * 1e9:
            waiting = [name for name in waiting if self._last_receipt(name) < since]
            time.sleep(LOOK_S)
        return waiting

    def _last_receipt(self, name: str) -> int:
        """When it was told of a commit last, as far as the end of its journal tells."""
        path = self.journal(name)
        if not path.exists():
            return 0
        with path.open("rb") as file:
            file.seek(max(0, path.stat().st_size - 65_536))
            lines = file.read().split(b"\n")[:-1]
        return max((int(line.split()[3]) for line in lines if line.startswith(b"c ") and len(line.split()) == 4), default=0)

    def finish(self) -> list[str]:
        """Have all of them wait for their answers and end; what went wrong."""
        findings = []
        for process in self.processes.values():
            assert process.stdin is not None
            process.stdin.close()
        for name, process in self.processes.items():
            try:
                code = process.wait(END_WAIT_S)
            except subprocess.TimeoutExpired:
                findings.append(f"liveness: {name} did not end within {END_WAIT_S:.0f} s of being told to")
                self._end(name, kill=True)
                continue
            if code:
                tail = (self._root / f"{name}.log").read_text("utf-8", "replace")[-800:]
                findings.append(f"client: {name} ended with {code}: {tail}")
        return findings

    def close(self) -> None:
        """Leave none behind."""
        for name in self.processes:
            self._end(name, kill=True)

    def read_once(self, name: str, url: str) -> View:
        """What a reader that comes now reads from one gateway."""
        command = [*self._before, sys.executable, "-m", "tests.faults.group.follower", "--once", str(self.journal(name)), url]
        done = subprocess.run(command, check=False, timeout=END_WAIT_S, capture_output=True, text=True)
        if done.returncode:
            raise RuntimeError(done.stderr.strip()[-500:])
        return read_view(name, Path(f"{self.journal(name)}.0"))

    def stories(self) -> list[Story]:
        """What the producers saw."""
        return [read_story(name, self.journal(name), dense=kind == "progress") for name, kind in PRODUCERS.items()]

    def views(self) -> list[View]:
        """What the readers saw."""
        names = [f"{self.journal('readers')}.{number}" for number in range(len(self._readers))]
        return [read_view(Path(name).name, Path(name)) for name in names]
