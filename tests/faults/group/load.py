"""Producers and readers of a group under test: started on the clients' host, killed now and then, ended in order."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from tests.faults.group.journal import BESIDE, Story, View, lanes_journal, read_story, read_view
from tests.faults.group.producer import UNORDERED
from tutti.runtime.child_processes import end_with_this_process

END_WAIT_S = 120.0
LOOK_S = 0.02
#: name -> kind, of the producers.
PRODUCERS = {"plain-0": "plain", "narrow-0": "narrow", "progress-0": "progress", "both-0": "both", "unordered-0": "unordered"}


class Load:
    """The clients of one run.

    Args:
        root: for journals and logs.
        before: what is put before a command so that it runs on the clients' host.
        url: of the group.
        readers: urls, one reader each.
        rate: records a second of each producer.
        lanes: whether some send unordered.
    """

    def __init__(
        self, root: Path, before: Sequence[str], url: str, readers: Sequence[str], rate: float, *, lanes: bool = True
    ) -> None:
        """Nothing runs yet."""
        self.producers = {name: kind for name, kind in PRODUCERS.items() if lanes or kind not in UNORDERED}
        self._root = root
        self._before = before
        self._url = url
        self._readers = readers
        self._rate = rate
        self.processes: dict[str, subprocess.Popen[bytes]] = {}

    def _run(self, name: str, *command: str) -> None:
        with (self._root / f"{name}.log").open("ab") as log:
            self.processes[name] = subprocess.Popen(
                [*self._before, sys.executable, "-m", *command],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                start_new_session=True,
                preexec_fn=end_with_this_process(9),  # noqa: PLW1509 - it calls prctl(2) alone
            )

    def journal(self, name: str) -> Path:
        """Where a client writes down what it sees."""
        return self._root / f"{name}.journal"

    def _produce(self, name: str) -> None:
        kind, journal = self.producers[name], str(self.journal(name))
        addresses = self._url.removeprefix("tutti://").split(",")
        turn = list(UNORDERED).index(kind) + 1 if kind in UNORDERED else 0  # so that more than one lane is written to
        url = "tutti://" + ",".join([*addresses[-turn:], *addresses[:-turn]])
        self._run(name, "tests.faults.group.producer", url, name, kind, journal, str(self._rate))

    def start(self) -> None:
        """Start all of them."""
        for name in self.producers:
            self._produce(name)
        if self._readers:
            self._run("readers", "tests.faults.group.follower", str(self.journal("readers")), *self._readers)

    def kill(self, name: str) -> None:
        """SIGKILL a producer and start it again under the same name."""
        self._end(name, kill=True)
        self._produce(name)

    def _end(self, name: str, *, kill: bool) -> int:
        process = self.processes[name]
        if kill:
            process.kill()
        code = process.wait()
        if process.stdin is not None and not process.stdin.closed:
            process.stdin.close()
        return code

    def wait_for_receipts(self, timeout_s: float) -> list[str]:
        """Wait until each producer was told of a further commit, of what it sends ordered and unordered; the journals of those that
        were not in time.
        """
        since = time.monotonic_ns()
        waiting = [path for name, kind in self.producers.items() for path in self._journals(name, kind)]
        while waiting and time.monotonic_ns() - since < timeout_s * 1e9:
            waiting = [path for path in waiting if last_receipt(path) < since]
            time.sleep(LOOK_S)
        return [path.name for path in waiting]

    def _journals(self, name: str, kind: str) -> list[Path]:
        """Those of a producer that tell of commits."""
        journal = self.journal(name)
        return ([journal] if UNORDERED.get(kind, 0) < 1 else []) + ([lanes_journal(journal)] if kind in UNORDERED else [])

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
                findings.append(f"liveness: {name} did not end within {END_WAIT_S:.0f} s after the request to stop")
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
        found = []
        for name, kind in self.producers.items():
            journal = self.journal(name)
            found.append(read_story(name, journal, dense=kind == "progress"))
            if kind in UNORDERED:
                found.append(read_story(BESIDE + name, lanes_journal(journal), unordered=True))
        return found

    def views(self) -> list[View]:
        """What the readers saw."""
        names = [f"{self.journal('readers')}.{number}" for number in range(len(self._readers))]
        return [read_view(Path(name).name, Path(name)) for name in names]


def last_receipt(path: Path) -> int:
    """When a producer was told of a commit last, as far as the end of its journal tells; 0 if it never was."""
    if not path.exists():
        return 0
    with path.open("rb") as file:
        file.seek(max(0, path.stat().st_size - 65_536))
        lines = file.read().split(b"\n")[:-1]
    return max((int(line.split()[3]) for line in lines if line.startswith(b"c ") and len(line.split()) >= 4), default=0)
