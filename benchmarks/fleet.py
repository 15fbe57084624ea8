"""A gateway to measure: a real process with its own directory, and what it costs."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import orjson

from benchmarks.figures import descendants, proportional_memory_bytes, seconds_of

START_S_MAX = 60.0
STOP_S_MAX = 60.0
PREPARE_S_MAX = 300.0


class Measured:
    """A running gateway: its url, its data directory, its process, and where that says what is wrong."""

    def __init__(self, process: subprocess.Popen[bytes], url: str, data: Path, errors: Path) -> None:
        """Nothing is started here."""
        self.process = process
        self.url = url
        self.data = data
        self.errors = errors

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


def free_base() -> int:
    """A base port P such that P..P+3 are free at this moment."""
    while True:
        with socket.create_server(("127.0.0.1", 0)) as first:
            base = first.getsockname()[1]
        if base > 65_000:
            continue
        try:
            for port in range(base, base + 4):
                socket.create_server(("127.0.0.1", port)).close()
        except OSError:
            continue
        return int(base)


@contextmanager
def gateway(root: Path | None = None, prepared: int = 2, data: Path | None = None) -> Iterator[Measured]:
    """One gateway that keeps `prepared` segments ready, on free ports; its own directory goes when the block ends."""
    with gateways(1, root, prepared, data) as (measured,):
        yield measured


@contextmanager
def gateways(count: int, root: Path | None = None, prepared: int = 2, data: Path | None = None) -> Iterator[list[Measured]]:
    """Gateways of one group, each with a directory of its own under `root` (a group of one may be given its own, `data`)."""
    own = Path(tempfile.mkdtemp(prefix="tutti-bench-", dir=root))
    names = [f"bench{number}" if count > 1 else "bench" for number in range(1, count + 1)]
    bases = {name: free_base() for name in names}
    members = ", ".join(f'{name} = "127.0.0.1:{base}"' for name, base in bases.items())
    running: list[Measured] = []
    try:
        for name, base in bases.items():
            directory = data or own / name
            config = own / f"{name}.toml"
            config.write_text(
                f'name = "{name}"\ndata = {orjson.dumps(str(directory)).decode()}\nlisten = "127.0.0.1:{base}"\n'
                f'[group]\nname = "bench"\npreset = "local"\nmembers = {{ {members} }}\n[log]\nprepared_segments = {prepared}\n'
            )
            running.append(_start(config, f"tutti://127.0.0.1:{base}", directory))
        for measured in running:
            _wait_ready(measured)
        yield running
    finally:
        for measured in running:
            measured.process.terminate()
        for measured in running:
            _end(measured.process)
        shutil.rmtree(own, ignore_errors=True)


def _start(config: Path, url: str, directory: Path) -> Measured:
    with config.with_suffix(".stderr").open("wb") as errors:
        process = subprocess.Popen(
            [sys.executable, "-m", "gateway", "serve", "--config", str(config)], stdout=subprocess.PIPE, stderr=errors
        )
    os.set_blocking(process.stdout.fileno(), False)  # type: ignore[union-attr]  # it was asked for above
    return Measured(process, url, directory, config.with_suffix(".stderr"))


def _end(process: subprocess.Popen[bytes]) -> None:
    try:
        process.wait(STOP_S_MAX)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _wait_ready(measured: Measured) -> None:
    limit_s = time.monotonic() + START_S_MAX
    said = b""
    while b'"ready"' not in said:
        if measured.process.poll() is not None or time.monotonic() > limit_s:
            raise SystemExit(f"the gateway did not start: {measured.errors.read_text(errors='replace')[-2000:]}")
        said += measured.process.stdout.read() or b""  # type: ignore[union-attr]  # a pipe was asked for
        time.sleep(0.01)
