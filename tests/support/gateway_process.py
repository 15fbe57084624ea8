"""A gateway process on free ports, which a test kills, stops and starts again on the same directory."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from tests.support.ports import free_base
from tutti.io.admin import AdminClient
from tutti.runtime.child_processes import end_with_this_process
from tutti_gateway.core import limits

READY_WAIT_S = 60.0
STOP_WAIT_S = 40.0
#: Lines of `[log]` for segments that double in size. The first one is not 1 MiB, which doubles to the size of the reserve.
GROWING = "prepared_segments = 0\nfirst_segment_bytes = 1100000\n"


@dataclass(frozen=True)
class Placement:
    """Where and how a gateway runs.

    Attributes:
        prefix: words before the command, such as `ip netns exec NAME`.
        arguments: more arguments of `tutti serve`.
        environment: variables added to the environment of the tests.
    """

    host: str
    port: int
    prefix: Sequence[str] = ()
    arguments: Sequence[str] = ()
    environment: Mapping[str, str] = field(default_factory=dict)


class GatewayProcess:
    """`tutti serve` on a directory. Logs go to `<directory>.log`."""

    def __init__(self, root: Path, name: str = "g1", extra: str = "", placement: Placement | None = None) -> None:
        """Write the configuration; `extra` is TOML that continues its `[group]` table."""
        self.name = name
        self.placement = placement or Placement("127.0.0.1", free_base())
        self.port = self.placement.port
        self.data = root / name
        self.log = root / f"{name}.log"
        self.config = root / f"{name}.toml"
        own = f'name = "{name}"\ndata = "{self.data}"\nlisten = "{self.placement.host}:{self.port}"\n'
        log = "" if "[log]" in extra else f"\n[log]\nsegment_bytes = {limits.SEGMENT_BYTES_MIN}\n"  # the smallest: each is zeroed
        self.config.write_text(f'{own}[group]\nname = "test"\npreset = "local"\n{extra}{log}')
        self.process: subprocess.Popen[bytes] | None = None
        self.ready: dict[str, Any] = {}

    @property
    def url(self) -> str:
        """The address for clients."""
        return f"tutti://{self.placement.host}:{self.port}"

    @property
    def pid(self) -> int:
        """The process id."""
        assert self.process is not None
        return self.process.pid

    def start(self, wait: bool = True) -> Self:
        """Start the process and, if `wait`, wait for its ready line."""
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                [
                    *self.placement.prefix,
                    sys.executable,
                    "-m",
                    "tutti_gateway",
                    "serve",
                    "--config",
                    str(self.config),
                    *self.placement.arguments,
                ],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=log,
                start_new_session=True,
                env={**os.environ, **self.placement.environment},
                preexec_fn=end_with_this_process(signal.SIGKILL),  # noqa: PLW1509 - it calls prctl(2) alone
            )
        if wait:
            self.wait_ready()
        return self

    def wait_ready(self, timeout_s: float = READY_WAIT_S) -> dict[str, Any]:
        """Wait for the ready line; AssertionError with the end of the log at the deadline."""
        assert self.process is not None
        assert self.process.stdout is not None
        deadline = time.monotonic() + timeout_s
        output = b""
        fd = self.process.stdout.fileno()
        while b"\n" not in output:
            left = deadline - time.monotonic()
            readable, _, _ = select.select([fd], [], [], max(0, left))
            chunk = os.read(fd, 65_536) if readable else b""
            if not chunk:
                raise AssertionError(f"no ready line (exit code {self.process.poll()}): {self.log_tail()}")
            output += chunk
        self.ready = json.loads(output.split(b"\n")[0])
        return self.ready

    def status(self) -> dict[str, Any]:
        """Return the status document of the gateway."""
        with AdminClient(self.url, timeout=20, learn=False) as admin:
            return admin.status()

    def log_tail(self, characters: int = 3000) -> str:
        """Return the end of the log."""
        return self.log.read_text("utf-8", "replace")[-characters:] if self.log.exists() else ""

    @property
    def runs(self) -> bool:
        """True if the process exists, suspended or not."""
        return self.process is not None and self.process.poll() is None

    def signal(self, number: int) -> None:
        """Send a signal to the process."""
        assert self.process is not None
        self.process.send_signal(number)

    def kill(self) -> None:
        """Send SIGKILL and wait for the end of the process."""
        assert self.process is not None
        self.process.kill()
        self.process.wait()
        self._close()

    def stop(self, timeout_s: float = STOP_WAIT_S) -> int:
        """Send SIGTERM and return the exit code."""
        assert self.process is not None
        self.process.send_signal(signal.SIGTERM)
        return self.wait_end(timeout_s)

    def wait_end(self, timeout_s: float = STOP_WAIT_S) -> int:
        """Wait until the process ends and return the exit code."""
        assert self.process is not None
        code = self.process.wait(timeout_s)
        self._close()
        return code

    def _close(self) -> None:
        assert self.process is not None
        if self.process.stdout is not None:
            self.process.stdout.close()

    def __enter__(self) -> Self:
        """Start."""
        return self.start()

    def __exit__(self, *_: object) -> None:
        """Kill the process if it still runs."""
        if self.process is not None and self.process.poll() is None:
            self.kill()
        elif self.process is not None:
            self._close()
