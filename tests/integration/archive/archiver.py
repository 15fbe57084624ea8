"""A real `tutti archive run` that tests start, kill and stop."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any, Self

from tutti.runtime.child_processes import end_with_this_process

STOP_WAIT_S = 60.0


class ArchiverProcess:
    """One archiver; its logs go to `<config>.log`."""

    def __init__(self, config: Path, url: str, archive: str, ticks: int = 1, more: str = "", range_bytes: int = 1 << 20) -> None:
        """Write its configuration."""
        self.config = config
        self.log = config.with_suffix(".log")
        config.write_text(f'gateways = "{url}"\narchive = "{archive}"\n{more}\n[ranges]\nticks = {ticks}\nbytes = {range_bytes}\n')
        self.process: subprocess.Popen[bytes] | None = None

    def _begin(self, *options: str) -> subprocess.Popen[bytes]:
        with self.log.open("ab") as log:
            return subprocess.Popen(
                [sys.executable, "-m", "tutti_gateway", "archive", "run", "--config", str(self.config), *options],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=log,
                preexec_fn=end_with_this_process(signal.SIGKILL),  # noqa: PLW1509 - it calls prctl(2) alone
            )

    def start(self, *, wait: bool = True) -> Self:
        """Start it and, by default, wait for its ready line."""
        self.process = self._begin()
        assert self.process.stdout is not None
        if wait:
            assert json.loads(self.process.stdout.readline())["ready"], self.log.read_text()
        return self

    def once(self) -> dict[str, Any]:
        """Run it once over the closed ranges."""
        process = self._begin("--once", "--json")
        said, _ = process.communicate(timeout=STOP_WAIT_S)
        assert process.returncode == 0, self.log.read_text()
        told: dict[str, Any] = json.loads(said)
        return told

    def kill(self) -> None:
        """SIGKILL, and wait until it is gone."""
        assert self.process is not None
        self.process.kill()
        self.process.communicate()
        self.process = None

    def stop(self) -> int:
        """SIGTERM; its exit code."""
        assert self.process is not None
        self.process.send_signal(signal.SIGTERM)
        return self.end()

    def end(self) -> int:
        """Wait until it ends, and return its exit code."""
        assert self.process is not None
        self.process.communicate(timeout=STOP_WAIT_S)
        code = self.process.returncode
        self.process = None
        return code

    def __enter__(self) -> Self:
        """Start."""
        return self.start()

    def __exit__(self, *_: object) -> None:
        """Leave no process behind."""
        if self.process is not None:
            self.kill()
