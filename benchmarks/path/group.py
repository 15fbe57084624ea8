"""A group of one checkout, as the benchmark sees it, and the turns that it takes."""

from __future__ import annotations

import os
import select
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import orjson

from benchmarks.load.generator import Load, run
from benchmarks.load.sessions import VALUE_BYTES, message_of, sessions
from benchmarks.path.served import CLIENT, Figures, Spent, spent, spent_since
from tutti.io.admin import AdminClient

HERE = Path(__file__).resolve().parents[2]
_STOP_S_MAX = 300
_ANSWER_S_MAX = 900
_SERVED = Path("benchmarks", "path", "served.py")


class Group:
    """A group of gateways with its clients, in separate processes.

    Attributes:
        checkout: the folder whose code runs.
        alone: for each run of the load generator, the share of its frames that the coordinator accepted as one plain batch in a
            message, which is the shortest way through a gateway.
    """

    def __init__(self, checkout: Path, process: subprocess.Popen[str]) -> None:
        """Store the process that `serving` started. The process may not be ready yet."""
        self.checkout = checkout
        self._process = process
        self._port = 0
        self._roles: dict[int, str] = {}
        self.alone: list[float] = []

    def wait_ready(self) -> None:
        """Wait until the group serves."""
        ready = self._answer()
        self._port, self._roles = ready["port"], {int(pid): role for pid, role in ready["roles"]}

    def clients(self, work: str, records: int) -> tuple[Figures, Spent]:
        """Let the checkout's own clients work (see `served.WORK`). Return the figures, and the CPU time of one record."""
        self._process.stdin.write(f"{orjson.dumps({'work': work, 'records': records}).decode()}\n")  # type: ignore[union-attr]  # Popen opened a pipe
        self._process.stdin.flush()  # type: ignore[union-attr]  # Popen opened a pipe
        answer = self._answer()
        return answer["figures"], {kind: (cpu_us, sleeps) for kind, (cpu_us, sleeps) in answer["spent"].items()}

    def load(self, connections: int, records: int, in_flight: int, rate: float) -> tuple[Load, Spent]:
        """Let the load generator work (see `generator.run`). Return the result, and the CPU time of one record."""
        with sessions(self._port, connections) as opened:
            message = message_of(opened[0].topic, VALUE_BYTES)
            before, alone = spent(self._roles), self._alone()
            done = run(opened, message, records, in_flight=in_flight, rate=rate)
            cost = spent_since(before, self._roles, records)
            now = self._alone()
        self.alone.append((now[0] - alone[0]) / max(1, now[1] - alone[1]))
        return done, cost | {f"{CLIENT}, load generator": (done.cpu_s * 1e6 / records, 0.0)}

    def _alone(self) -> tuple[int, int]:
        with AdminClient(f"tutti://127.0.0.1:{self._port}") as control:
            ingest = control.status()["ingest"]
        return ingest.get("frames_alone", 0), ingest["frames"]  # an older release does not count lone frames

    def _answer(self) -> Any:
        # Each answer is one line, so the file object never holds a further answer that `select` would not see.
        if not select.select([self._process.stdout.fileno()], [], [], _ANSWER_S_MAX)[0]:  # type: ignore[union-attr]  # Popen opened a pipe
            raise SystemExit(f"the group of {self.checkout} did not answer for {_ANSWER_S_MAX} s")
        line = self._process.stdout.readline()  # type: ignore[union-attr]  # Popen opened a pipe
        if not line:
            raise SystemExit(f"the group of {self.checkout} ended; the output above contains its error")
        return orjson.loads(line)


def package_roots(checkout: Path) -> list[Path]:
    """Return the folders from which Python imports the packages of a checkout."""
    return [checkout, *sorted({package.parent for package in checkout.glob("*/*tutti*") if package.is_dir()})]


@contextmanager
def serving(checkout: Path, members: int, prepared: int, directory: Path) -> Iterator[Group]:
    """Start a group of `members` gateways, each with `prepared` prepared segments. The group ends with the block."""
    # Each checkout serves with its own copy of the file, because module names differ between releases.
    own = checkout / _SERVED
    process = subprocess.Popen(
        [sys.executable, "-P", str(own if own.exists() else HERE / _SERVED), str(members), str(prepared), str(directory)],
        cwd=checkout,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(map(str, package_roots(checkout)))},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,  # Ctrl-C reaches only this process, which ends the group
    )
    try:
        yield Group(checkout, process)
    except BaseException:
        process.kill()  # its gateways end with it; after Ctrl-C, its clients would otherwise finish their work first
        raise
    finally:
        process.stdin.close()  # type: ignore[union-attr]  # Popen opened a pipe
        try:
            process.wait(_STOP_S_MAX)
        except subprocess.TimeoutExpired:
            process.kill()  # its gateways end with it
            raise SystemExit(f"the group of {checkout} did not stop within {_STOP_S_MAX} s") from None
