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

from benchmarks.figures import descendants, proportional_memory_bytes

START_S_MAX = 60.0
STOP_S_MAX = 60.0
PREPARE_S_MAX = 300.0


class Measured:
    """A running gateway: its url, its data directory and its process."""

    def __init__(self, process: subprocess.Popen[bytes], url: str, data: Path) -> None:
        """Nothing is started here."""
        self.process = process
        self.url = url
        self.data = data

    def memory_mb(self) -> float:
        """PSS of all its processes together, MB."""
        return proportional_memory_bytes([self.process.pid, *descendants(self.process.pid)]) / 1e6

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
    own = tempfile.mkdtemp(prefix="tutti-bench-", dir=root)
    directory = data or Path(own, "data")
    base = free_base()
    config = Path(own, "gateway.toml")
    config.write_text(
        f'name = "bench"\ndata = {orjson.dumps(str(directory)).decode()}\nlisten = "127.0.0.1:{base}"\n'
        f'[group]\nname = "bench"\npreset = "local"\n[log]\nprepared_segments = {prepared}\n'
    )
    errors = open(Path(own, "stderr"), "wb")  # noqa: SIM115 - closed below, after the process ended
    process = subprocess.Popen(
        [sys.executable, "-m", "gateway", "serve", "--config", str(config)], stdout=subprocess.PIPE, stderr=errors
    )
    try:
        os.set_blocking(process.stdout.fileno(), False)  # type: ignore[union-attr]  # it was asked for above
        _wait_ready(process, Path(own, "stderr"))
        yield Measured(process, f"tutti://127.0.0.1:{base}", directory)
    finally:
        process.terminate()
        try:
            process.wait(STOP_S_MAX)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        errors.close()
        shutil.rmtree(own, ignore_errors=True)


def _wait_ready(process: subprocess.Popen[bytes], errors: Path) -> None:
    limit_s = time.monotonic() + START_S_MAX
    said = b""
    while b'"ready"' not in said:
        if process.poll() is not None or time.monotonic() > limit_s:
            raise SystemExit(f"the gateway did not start: {errors.read_text(errors='replace')[-2000:]}")
        said += process.stdout.read() or b""  # type: ignore[union-attr]  # a pipe was asked for
        time.sleep(0.01)
