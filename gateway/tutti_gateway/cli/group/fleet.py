"""Supervisor of the gateway processes of `tutti dev`: starts, monitors, restarts and stops them.

A single thread runs an event loop. The loop wakes when a gateway prints output or ends, when a start is due, and on a stop signal.
"""

from __future__ import annotations

import os
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

import orjson

from tutti.errors import Unavailable
from tutti.runtime.child_processes import end_with_this_process
from tutti.runtime.lossy_log_file import LossyLogFile
from tutti_gateway.cli.common.output import print_json
from tutti_gateway.cli.group.gateway_directories import PORT_MAX, GatewayPaths, removed
from tutti_gateway.config import Address
from tutti_gateway.node.common.port_check import wait_free

READY_WAIT_S_MAX = 60.0
STOP_WAIT_S_MAX = 60.0
_OUTPUT_BYTES_MAX = 65_536
_PURPOSES = ("clients", "group", "reads", "admin")  # of the ports of a gateway, in the order of the ports
_OTHER_PORTS = 100  # distance to the base port that an error proposes: more than the ports of seven gateways
#: Exit codes after which a gateway is not restarted: it left on request (0), was used wrongly (2), or found corruption (4).
_FINAL_EXIT_CODES = {0, 2, 4}


def serve_command(config: Path, *options: str) -> list[str]:
    """Return the command line that runs one gateway with the current Python interpreter."""
    return [sys.executable, "-m", "tutti_gateway", "serve", "--config", str(config), *options]


def _is_ready_line(line: bytes) -> bool:
    try:
        report = orjson.loads(line)
    except orjson.JSONDecodeError:
        return False  # not the ready line (which is JSON), or only its beginning
    return isinstance(report, dict) and report.get("ready") is True


class Gateway:
    """One gateway of this machine: its paths, and the process that runs it."""

    def __init__(self, paths: GatewayPaths, options: Sequence[str]) -> None:
        """Store the paths of the gateway and its options for `tutti serve`, without starting it."""
        self.paths = paths
        self._options = options
        self.name = paths.name
        self.process: Process | None = None
        self.start_at_s: float | None = None  # monotonic time of the next start, or None if no start is planned

    def start(self) -> Process:
        """Start the process of the gateway."""
        self.start_at_s = None
        self.process = Process(serve_command(self.paths.config, *self._options))
        return self.process

    @property
    def ready(self) -> bool:
        """True if the gateway's current process has printed its ready line."""
        return self.process is not None and self.process.ready

    @property
    def report(self) -> dict[str, object]:
        """Return the fields that describe this gateway in the ready line of the group."""
        pid = self.process.pid if self.process else None
        return {"name": self.name, "url": self.paths.url, "pid": pid, "data": str(self.paths.data)}


class Process:
    """A gateway process. When the parent dies, the kernel sends SIGTERM to the process. A Ctrl-C reaches only the parent."""

    def __init__(self, command: Sequence[str]) -> None:
        """Start the process."""
        self.output, write_end = os.pipe2(os.O_CLOEXEC)
        self.ready = False
        self._output_tail = b""
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=write_end,
            start_new_session=True,
            preexec_fn=end_with_this_process(),  # noqa: PLW1509 - this process has a single thread
        )
        os.close(write_end)
        self.pid = self._process.pid
        self.end = os.pidfd_open(self.pid)  # readable when the process has ended

    def process_output(self, output_part: bytes) -> bool:
        """Search the gateway's output for the ready line, and return True when it is found for the first time."""
        if self.ready:
            return False
        self._output_tail = (self._output_tail + output_part)[-_OUTPUT_BYTES_MAX:]
        self.ready = any(_is_ready_line(line) for line in self._output_tail.splitlines())
        return self.ready

    def signal(self, number: int) -> None:
        """Send a signal to the process, unless it has ended."""
        self._process.send_signal(number)

    def wait(self, limit_s: float) -> int:
        """Wait for the end of the process, and return its exit code. If a signal ended it, the code is negative: -9 for SIGKILL.

        Raises:
            subprocess.TimeoutExpired: the process has not ended within `limit_s` seconds.
        """
        return self._process.wait(limit_s)

    def close(self) -> None:
        """Close the file descriptors of the process."""
        os.close(self.output)
        os.close(self.end)


class Fleet:
    """Runs gateways until SIGTERM or Ctrl-C."""

    def __init__(self, paths: Sequence[GatewayPaths], restart_after_s: float, options: Sequence[str] = ()) -> None:
        """Prepare to run the gateways at `paths`, except gateways that were removed from the group.

        Args:
            paths: paths of the gateways.
            restart_after_s: delay before a killed gateway is started again, seconds. With 0, it is not started again.
            options: options of `tutti serve` for each gateway.
        """
        self._paths = paths
        self._log_file = LossyLogFile(sys.stderr)  # drops lines and never waits, so that a blocked terminal cannot stop the loop
        removed_names = removed(paths)
        self._gateways = [Gateway(one, options) for one in paths if one.name not in removed_names]
        for one in paths:
            if one.name in removed_names:
                self._report_removed(one)
        self._restart_after_s = restart_after_s
        self._stops = 0
        self._reported_ready = False
        self._code: int | None = None
        self._wake = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._wake, selectors.EVENT_READ)

    def run(self) -> int:
        """Start all gateways, print the ready line, and return the exit code after all gateways have ended.

        Raises:
            PortInUse: another process listens on a port of a gateway.
            Unavailable: a gateway did not become ready in time, or was killed before it was ready, or every gateway was removed
                from the group.
        """
        if not self._gateways:
            raise Unavailable("every gateway of this directory was removed from its group: start the group at its current members")
        self._wait_for_ports()
        deadline_s = time.monotonic() + READY_WAIT_S_MAX
        with self._signals():
            try:
                for gateway in self._gateways:
                    self._start(gateway)
                while not self._stops and self._code is None:
                    self._run_once(None if self._reported_ready else deadline_s)
            finally:
                self._stop_all()
        return self._code or 0

    def _wait_for_ports(self) -> None:
        """Wait until the ports of all gateways are free. A gateway checks its ports too, but its error cannot name --port."""
        first = int(self._paths[0].address.rpartition(":")[2])
        other = first + _OTHER_PORTS if first < PORT_MAX // 2 else first - _OTHER_PORTS
        for gateway in self._gateways:
            host, _, base = gateway.paths.address.rpartition(":")
            ports = {f"{purpose} of {gateway.name}": Address(host, int(base) + at) for at, purpose in enumerate(_PURPOSES)}
            wait_free(ports, f"choose other ports, such as --port {other}")

    def _run_once(self, deadline_s: float | None) -> None:
        """Wait for the next event, and handle it."""
        due = [gateway.start_at_s for gateway in self._gateways if gateway.start_at_s is not None]
        due += [deadline_s] if deadline_s is not None else []
        wait_s = max(0.0, min(due) - time.monotonic()) if due else None
        for key, _ in self._selector.select(wait_s):
            gateway = key.data
            if gateway is None:
                os.eventfd_read(self._wake)
            elif gateway.process is None:
                continue  # the gateway ended: an earlier event of this loop has already released its process
            elif key.fd == gateway.process.end:
                self._ended(gateway)
            elif self._read_output(gateway.process):
                self._is_ready(gateway)
        now_s = time.monotonic()
        for gateway in self._gateways:
            if gateway.start_at_s is not None and gateway.start_at_s <= now_s:
                self._restart(gateway)
        if deadline_s is not None and not self._reported_ready and now_s > deadline_s:
            late = ", ".join(gateway.name for gateway in self._gateways if not gateway.ready)
            raise Unavailable(f"{late} did not become ready within {READY_WAIT_S_MAX:.0f} s; see the log above")

    def _log(self, text: str) -> None:
        """Write a line to standard error, and ignore a failed write."""
        self._log_file.write(f"dev: {text}\n")

    def _start(self, gateway: Gateway) -> None:
        process = gateway.start()
        self._selector.register(process.output, selectors.EVENT_READ, gateway)
        self._selector.register(process.end, selectors.EVENT_READ, gateway)

    def _restart(self, gateway: Gateway) -> None:
        if gateway.name not in removed(self._paths):
            self._start(gateway)
            return
        gateway.start_at_s = None
        self._report_removed(gateway.paths)
        self._end_if_none_left(0)

    def _report_removed(self, paths: GatewayPaths) -> None:
        command = f"`tutti serve --config {paths.config}` and `tutti members add {paths.name} {paths.address}`"
        self._log(f"{paths.name} was removed from the group and is not started; to bring it back: {command}")

    def _end_if_none_left(self, code: int) -> None:
        """Let `run` return `code` if no gateway runs and no start is planned."""
        if not any(gateway.process or gateway.start_at_s is not None for gateway in self._gateways):
            self._code = code

    def _is_ready(self, gateway: Gateway) -> None:
        if self._reported_ready:
            self._log(f"{gateway.name} is ready again, process {gateway.report['pid']}")
        elif all(gateway.ready for gateway in self._gateways):
            self._reported_ready = True
            url = "tutti://" + ",".join(gateway.paths.address for gateway in self._gateways)
            print_json({"ready": True, "url": url, "gateways": [gateway.report for gateway in self._gateways]})

    def _ended(self, gateway: Gateway) -> None:
        code = self._release(gateway, STOP_WAIT_S_MAX)
        how = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
        if not self._reported_ready:
            if code < 0:
                raise Unavailable(f"gateway {gateway.name} {how} before it was ready")
            self._code = code or 1  # the gateway has logged the reason
        elif code in _FINAL_EXIT_CODES:
            self._log(f"{gateway.name} {how} and is not restarted")
            self._end_if_none_left(code)
        elif self._restart_after_s:
            self._log(f"{gateway.name} {how}; it restarts in {self._restart_after_s:g} s")
            gateway.start_at_s = time.monotonic() + self._restart_after_s
        else:
            self._log(f"{gateway.name} {how}; --restart-after 0 leaves it down")
            # After a kill, `code` is negative, so `run` returns exit code 1 instead.
            self._end_if_none_left(max(code, 1))

    def _read_output(self, process: Process) -> bool:
        output_part = os.read(process.output, _OUTPUT_BYTES_MAX)
        if not output_part:
            self._selector.unregister(process.output)
        return process.process_output(output_part)

    def _release(self, gateway: Gateway, limit_s: float) -> int:
        """Wait for the end of the gateway's process, close its file descriptors, and return its exit code."""
        process = gateway.process
        if process is None:
            return 0
        code = process.wait(limit_s)
        for descriptor in (process.output, process.end):
            if descriptor in self._selector.get_map():
                self._selector.unregister(descriptor)
        process.close()
        gateway.process = None
        return code

    def _stop_all(self) -> None:
        """Stop all gateways with SIGTERM. Repeat SIGTERM for each further stop signal, and send SIGKILL after the time limit."""
        deadline_s = time.monotonic() + STOP_WAIT_S_MAX
        sent_stops = -1
        while running := [gateway.process for gateway in self._gateways if gateway.process]:
            late = time.monotonic() > deadline_s
            for process in running:
                if sent_stops < self._stops or late:
                    process.signal(signal.SIGKILL if late else signal.SIGTERM)
            sent_stops = self._stops
            for key, _ in self._selector.select(1.0):
                gateway = key.data
                if gateway is None:
                    os.eventfd_read(self._wake)
                elif gateway.process and key.fd == gateway.process.end:
                    code = self._release(gateway, STOP_WAIT_S_MAX)
                    if code not in (0, -signal.SIGTERM):
                        self._log(f"{gateway.name} ended with {code} on a request to stop")
                elif gateway.process:
                    self._read_output(gateway.process)

    @contextmanager
    def _signals(self) -> Iterator[None]:
        """During the block, let SIGTERM and Ctrl-C only count a stop request and wake the loop."""

        def on_signal(_number: int, _frame: FrameType | None) -> None:
            self._stops += 1
            os.eventfd_write(self._wake, 1)

        before = {number: signal.signal(number, on_signal) for number in (signal.SIGTERM, signal.SIGINT)}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
            self._selector.close()
            os.close(self._wake)
