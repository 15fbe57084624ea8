"""A gateway to measure: a real process with its own directory, and what it costs."""

from __future__ import annotations

import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import orjson

from benchmarks.figures import descendants, proportional_memory_bytes, seconds_of
from tutti.io.admin import AdminClient
from tutti.runtime.child_processes import end_with_this_process

START_S_MAX = 120.0
STOP_S_MAX = 60.0
PREPARE_S_MAX = 300.0
PORTS = 10_000, 32_000


class Measured:
    """A gateway to measure.

    Attributes:
        name: in the group.
        base: its base port.
        url: its address.
        data: its directory.
        errors: where its last run said what is wrong.
        process: its last run.
    """

    process: subprocess.Popen[bytes]

    def __init__(self, name: str, base: int, data: Path, config: Path) -> None:
        """Nothing is started here."""
        self.name = name
        self.base = base
        self.url = f"tutti://127.0.0.1:{base}"
        self.data = data
        self.errors = config.with_suffix(".stderr")
        self._config = config

    def write_config(self, members: Sequence[Measured], prepared: int) -> None:
        """Who found the group, or may be there when it joins, itself among them; and how many segments it keeps ready."""
        listed = ", ".join(f'{member.name} = "127.0.0.1:{member.base}"' for member in members)
        data = orjson.dumps(str(self.data)).decode()
        self._config.write_text(
            f'name = "{self.name}"\ndata = {data}\nlisten = "127.0.0.1:{self.base}"\n[group]\nname = "bench"\n'
            f'preset = "local"\nmembers = {{ {listed} }}\n[log]\nprepared_segments = {prepared}\n'
        )

    def start(self) -> None:
        """Start it; it is ready in its own time."""
        with self.errors.open("wb") as errors:
            command = [sys.executable, "-m", "tutti_gateway", "serve", "--config", str(self._config)]
            dying_too = end_with_this_process(signal.SIGKILL)
            self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, preexec_fn=dying_too)  # noqa: PLW1509 - it calls prctl(2) alone
        os.set_blocking(self.process.stdout.fileno(), False)  # type: ignore[union-attr]  # it was asked for above

    def wait_ready(self) -> None:
        """Wait for its ready line; SystemExit with the end of what it said when it ended, or takes too long."""
        limit_s = time.monotonic() + START_S_MAX
        said = b""
        while b'"ready"' not in said:
            if self.process.poll() is not None or time.monotonic() > limit_s:
                raise SystemExit(f"the gateway did not start: {self.errors.read_text(errors='replace')[-2000:]}")
            said += self.process.stdout.read() or b""  # type: ignore[union-attr]  # a pipe was asked for
            time.sleep(0.01)

    def kill(self) -> None:
        """SIGKILL, and wait until it is gone."""
        self.process.kill()
        self._gone(None)

    def end(self) -> None:
        """Wait for the end that it was told of; kill it when that takes too long."""
        try:
            self._gone(STOP_S_MAX)
        except subprocess.TimeoutExpired:
            self.kill()

    def _gone(self, wait_s: float | None) -> None:
        self.process.wait(wait_s)
        self.process.stdout.close()  # type: ignore[union-attr]  # a pipe was asked for

    @property
    def started(self) -> bool:
        """Whether it was ever started."""
        return hasattr(self, "process")

    def memory_mb(self) -> float:
        """PSS of all its processes together, MB."""
        return proportional_memory_bytes([self.process.pid, *descendants(self.process.pid)]) / 1e6

    def cpu_s(self) -> float:
        """CPU time that its processes have used, s."""
        return sum(seconds_of(pid) for pid in [self.process.pid, *descendants(self.process.pid)])

    def wait_prepared(self, segments: int) -> None:
        """Wait until that many segments of written zeros lie ready."""
        limit_s = time.monotonic() + PREPARE_S_MAX
        while len(list((self.data / "log").glob("prepared-*.seg"))) < segments:
            if time.monotonic() > limit_s:
                raise SystemExit(f"the gateway did not prepare {segments} segments within {PREPARE_S_MAX:.0f} s")
            time.sleep(0.2)


def free_bases(count: int) -> list[int]:
    """Base ports P such that P..P+3 are free at this moment, none in the range that the system hands out by itself: a gateway may
    be started much later.
    """
    found: list[int] = []
    while len(found) < count:
        base = random.randrange(*PORTS)
        if any(abs(base - other) < 4 for other in found):
            continue
        try:
            for port in range(base, base + 4):
                socket.create_server(("127.0.0.1", port)).close()
        except OSError:
            continue
        found.append(base)
    return found


@contextmanager
def gateway(root: Path | None = None, prepared: int = 2, data: Path | None = None) -> Iterator[Measured]:
    """One gateway that keeps `prepared` segments ready, on free ports; its own directory goes when the block ends."""
    with gateways(1, root, prepared, data) as (measured,):
        yield measured


@contextmanager
def gateways(count: int, root: Path | None = None, prepared: int = 2, data: Path | None = None) -> Iterator[list[Measured]]:
    """Gateways of one group, each with a directory of its own under `root` (a group of one may be given its own, `data`)."""
    with laid_out(count, count, root, prepared, data) as running:
        for measured in running:
            measured.start()
        for measured in running:
            measured.wait_ready()
        yield running


@contextmanager
def laid_out(
    founders: int, count: int, root: Path | None = None, prepared: int = 2, data: Path | None = None
) -> Iterator[list[Measured]]:
    """`count` gateways, none of which runs: the first ones found a group, each of the others may be added to all before it. Those
    that were started are stopped when the block ends, and the directories go.
    """
    own = Path(tempfile.mkdtemp(prefix="tutti-bench-", dir=root))
    made: list[Measured] = []
    try:
        for number, base in enumerate(free_bases(count), start=1):
            name = f"bench{number}" if count > 1 else "bench"
            made.append(Measured(name, base, data or own / name, own / f"{name}.toml"))
        for number, measured in enumerate(made, start=1):
            measured.write_config(made[: max(number, founders)], prepared)
        yield made
    finally:
        started = [measured for measured in made if measured.started]
        for measured in started:
            measured.process.terminate()
        for measured in started:
            measured.end()
        shutil.rmtree(own, ignore_errors=True)


def coordinator_of(running: Sequence[Measured]) -> Measured:
    """The one that coordinates the view."""
    with AdminClient(running[0].url) as control:
        name = control.status()["view"]["coordinator"]
    return next(measured for measured in running if measured.name == name)
