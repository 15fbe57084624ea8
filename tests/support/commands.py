"""Commands of `tutti` as a shell runs them, and groups that `tutti dev` runs."""

from __future__ import annotations

import io
import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.support.ports import free_base
from tutti_gateway.cli.main import main

TUTTI = [sys.executable, "-m", "tutti_gateway"]
WAIT_S = 60.0


class Done(NamedTuple):
    """The result of a command: exit code, standard output and standard error."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)

    @property
    def lines(self) -> list[str]:
        return self.out.splitlines()


def shell(*arguments: str) -> Done:
    """Run a command in its own process."""
    done = subprocess.run([*TUTTI, *arguments], capture_output=True, timeout=WAIT_S, check=False)
    return Done(done.returncode, done.stdout.decode(), done.stderr.decode())


def tutti(*arguments: str, given: bytes = b"", url: str | None = None) -> Done:
    """Run a command in this process, which saves the start of an interpreter."""
    buffers = [io.BytesIO(given), io.BytesIO(), io.BytesIO()]
    with pytest.MonkeyPatch.context() as patch:
        for name, buffer in zip(("stdin", "stdout", "stderr"), buffers, strict=True):
            patch.setattr(sys, name, io.TextIOWrapper(buffer, "utf-8", newline="", write_through=True))
        if url is not None:
            patch.setenv("TUTTI_URL", url)
        code = main(arguments)
        return Done(code, buffers[1].getvalue().decode(), buffers[2].getvalue().decode())


class DevGroup:
    """A running `tutti dev`."""

    def __init__(self, port: int, directory: Path, *options: str) -> None:
        command = [*TUTTI, "dev", "--port", str(port), "--data", str(directory), *options]
        self.directory, self.port = directory, port
        self.log = directory.parent / f"{directory.name}.log"
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True)
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            self.process.communicate(timeout=WAIT_S)
        assert line, self.log.read_text()
        self.told: dict[str, Any] = json.loads(line)
        self.url: str = self.told["url"]
        self.data = Path(self.told["gateways"][0]["data"])

    @property
    def pid(self) -> int:
        """The process id of the gateway, from its status."""
        pid: int = tutti("status", "--json", url=self.url).json["pid"]
        return pid

    def stop(self) -> int:
        self.process.send_signal(signal.SIGTERM)
        self.process.communicate(timeout=WAIT_S)
        return self.process.returncode


@contextmanager
def dev_group(directory: Path, *options: str) -> Iterator[DevGroup]:
    """Run `tutti dev` until the block ends."""
    running = DevGroup(free_base(), directory, *options)
    try:
        yield running
    finally:
        if running.process.poll() is None:
            running.stop()


@contextmanager
def serving(configs: list[Path], directory: Path) -> Iterator[list[Any]]:
    """Run a gateway for each configuration, in the working directory `directory`, until the block ends. Yield their ready lines."""
    processes = []
    try:
        for config in configs:
            command = [*TUTTI, "serve", "--config", str(config)]
            with (directory / f"{config.stem}.log").open("wb") as log:
                processes.append(subprocess.Popen(command, cwd=directory, stdout=subprocess.PIPE, stderr=log, text=True))
        ready = []
        for config, process in zip(configs, processes, strict=True):
            assert process.stdout is not None
            line = process.stdout.readline()
            assert line, (directory / f"{config.stem}.log").read_text()
            ready.append(json.loads(line))
        yield ready
    finally:
        for process in processes:
            process.kill()
            process.communicate()
