"""Gateway processes that live and end together: started, watched, started again when killed, stopped in order.

One thread, one loop: it sleeps until a gateway says something, dies or is due to start, or until a signal asks to stop.
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
from tutti.runtime.child_processes import ending_with_this
from tutti.runtime.lossy_log_file import Unfailing
from tutti_gateway.cli.common.output import print_json
from tutti_gateway.cli.group.gateway_directories import Home, removed

READY_WAIT_S_MAX = 60.0
STOP_WAIT_S_MAX = 60.0
_SAID_BYTES_MAX = 65_536
#: Exit codes that a new start does not mend: told to leave, wrong use, damage.
_FOR_GOOD = {0, 2, 4}


def serve_command(config: Path, *options: str) -> list[str]:
    """What runs one gateway with this very Python."""
    return [sys.executable, "-m", "tutti_gateway", "serve", "--config", str(config), *options]


def _says_ready(line: bytes) -> bool:
    try:
        told = orjson.loads(line)
    except orjson.JSONDecodeError:
        return False  # a line for people, or the rest of it is still to come
    return isinstance(told, dict) and told.get("ready") is True


class Gateway:
    """One gateway of this machine: where it lives, and the process that runs it."""

    def __init__(self, home: Home, options: Sequence[str]) -> None:
        """Nothing runs yet; `options` are those of `tutti serve`."""
        self.home = home
        self._options = options
        self.name = home.name
        self.process: Process | None = None
        self.start_at_s: float | None = None  # on the monotonic clock; None: it runs, or will not be started again

    def start(self) -> Process:
        """Start it."""
        self.start_at_s = None
        self.process = Process(serve_command(self.home.config, *self._options))
        return self.process

    @property
    def ready(self) -> bool:
        """Whether it runs and said that it is ready."""
        return self.process is not None and self.process.ready

    @property
    def told(self) -> dict[str, object]:
        """Its part of the ready line."""
        pid = self.process.pid if self.process else None
        return {"name": self.name, "url": self.home.url, "pid": pid, "data": str(self.home.data)}


class Process:
    """A gateway process. It gets SIGTERM when this process is gone, and no Ctrl-C of the terminal: stopping it is our work."""

    def __init__(self, command: Sequence[str]) -> None:
        """Start it."""
        self.output, its_output = os.pipe2(os.O_CLOEXEC)
        self.ready = False
        self._said = b""
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=its_output,
            start_new_session=True,
            preexec_fn=ending_with_this(),  # noqa: PLW1509 - this process has one thread
        )
        os.close(its_output)
        self.pid = self._process.pid
        self.end = os.pidfd_open(self.pid)  # readable when it has ended

    def hear(self, said: bytes) -> bool:
        """Take in what it wrote; whether that said that it is ready now."""
        if self.ready:
            return False
        self._said = (self._said + said)[-_SAID_BYTES_MAX:]
        self.ready = any(_says_ready(line) for line in self._said.splitlines())
        return self.ready

    def signal(self, number: int) -> None:
        """Send it a signal, if it still runs."""
        self._process.send_signal(number)

    def wait(self, limit_s: float) -> int:
        """Its exit code, negative for a signal, once it has ended.

        Raises:
            subprocess.TimeoutExpired: it has not within `limit_s`.
        """
        return self._process.wait(limit_s)

    def close(self) -> None:
        """Close what this process holds of it."""
        os.close(self.output)
        os.close(self.end)


class Fleet:
    """Runs gateways until it is told to stop."""

    def __init__(self, homes: Sequence[Home], restart_after_s: float, options: Sequence[str] = ()) -> None:
        """`restart_after_s`: how long a killed gateway stays down; 0: for good. `options`: of each one's `tutti serve`.

        Who was removed from the group is not started.
        """
        self._homes = homes
        self._notes = Unfailing(sys.stderr)  # who watches gateways waits for no terminal
        out = removed(homes)
        self._gateways = [Gateway(home, options) for home in homes if home.name not in out]
        for home in homes:
            if home.name in out:
                self._leave_out(home)
        self._restart_after_s = restart_after_s
        self._stops = 0
        self._announced = False
        self._code: int | None = None
        self._wake = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._wake, selectors.EVENT_READ)

    def run(self) -> int:
        """Start all, print the ready line, and come back with the exit code when all have ended.

        Raises:
            Unavailable: they were not ready in time, one was killed before it was, or all were removed from the group.
        """
        if not self._gateways:
            raise Unavailable(
                "no gateway of this directory is a member of its group any more: start the group where its members are"
            )
        deadline_s = time.monotonic() + READY_WAIT_S_MAX
        with self._signals():
            try:
                for gateway in self._gateways:
                    self._start(gateway)
                while not self._stops and self._code is None:
                    self._turn(None if self._announced else deadline_s)
            finally:
                self._stop_all()
        return self._code or 0

    def _turn(self, deadline_s: float | None) -> None:
        """Sleep until something happens, and see to it."""
        due = [gateway.start_at_s for gateway in self._gateways if gateway.start_at_s is not None]
        due += [deadline_s] if deadline_s is not None else []
        wait_s = max(0.0, min(due) - time.monotonic()) if due else None
        for key, _ in self._selector.select(wait_s):
            gateway = key.data
            if gateway is None:
                os.eventfd_read(self._wake)
            elif gateway.process is None:
                continue  # its end came with its last words
            elif key.fd == gateway.process.end:
                self._ended(gateway)
            elif self._hear(gateway.process):
                self._is_ready(gateway)
        now_s = time.monotonic()
        for gateway in self._gateways:
            if gateway.start_at_s is not None and gateway.start_at_s <= now_s:
                self._start_again(gateway)
        if deadline_s is not None and not self._announced and now_s > deadline_s:
            late = ", ".join(gateway.name for gateway in self._gateways if not gateway.ready)
            raise Unavailable(f"{late} did not become ready within {READY_WAIT_S_MAX:.0f} s; what it logged stands above")

    def _note(self, text: str) -> None:
        """A line for people, if there is anybody who takes it."""
        self._notes.write(f"dev: {text}\n")

    def _start(self, gateway: Gateway) -> None:
        process = gateway.start()
        self._selector.register(process.output, selectors.EVENT_READ, gateway)
        self._selector.register(process.end, selectors.EVENT_READ, gateway)

    def _start_again(self, gateway: Gateway) -> None:
        if gateway.name not in removed(self._homes):
            self._start(gateway)
            return
        gateway.start_at_s = None
        self._leave_out(gateway.home)
        self._end_with_the_last(0)

    def _leave_out(self, home: Home) -> None:
        back = f"`tutti serve --config {home.config}` and `tutti members add {home.name} {home.address}`"
        self._note(f"{home.name} was removed from the group and is not started; {back} bring it back")

    def _end_with_the_last(self, code: int) -> None:
        """End with `code` if no gateway runs, or will, any more."""
        if not any(gateway.process or gateway.start_at_s is not None for gateway in self._gateways):
            self._code = code

    def _is_ready(self, gateway: Gateway) -> None:
        if self._announced:
            self._note(f"{gateway.name} is ready again, process {gateway.told['pid']}")
        elif all(gateway.ready for gateway in self._gateways):
            self._announced = True
            url = "tutti://" + ",".join(gateway.home.address for gateway in self._gateways)
            print_json({"ready": True, "url": url, "gateways": [gateway.told for gateway in self._gateways]})

    def _ended(self, gateway: Gateway) -> None:
        code = self._forget(gateway, STOP_WAIT_S_MAX)
        how = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
        if not self._announced:
            if code < 0:
                raise Unavailable(f"gateway {gateway.name} {how} before it was ready")
            self._code = code or 1  # it said why
        elif code in _FOR_GOOD:
            self._note(f"{gateway.name} {how} and is not started again")
            self._end_with_the_last(code)
        elif self._restart_after_s:
            self._note(f"{gateway.name} {how}; it is started again in {self._restart_after_s:g} s")
            gateway.start_at_s = time.monotonic() + self._restart_after_s
        else:
            self._note(f"{gateway.name} {how}; --restart-after 0 leaves it down")
            self._end_with_the_last(max(code, 1))  # -9 is no exit code

    def _hear(self, process: Process) -> bool:
        said = os.read(process.output, _SAID_BYTES_MAX)
        if not said:
            self._selector.unregister(process.output)
        return process.hear(said)

    def _forget(self, gateway: Gateway, limit_s: float) -> int:
        """Wait for the end of a gateway's process and let go of it; its exit code."""
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
        """SIGTERM to all, again with each further signal to this process, SIGKILL to who has not ended in time."""
        deadline_s = time.monotonic() + STOP_WAIT_S_MAX
        asked = -1
        while running := [gateway.process for gateway in self._gateways if gateway.process]:
            late = time.monotonic() > deadline_s
            for process in running:
                if asked < self._stops or late:
                    process.signal(signal.SIGKILL if late else signal.SIGTERM)
            asked = self._stops
            for key, _ in self._selector.select(1.0):
                gateway = key.data
                if gateway is None:
                    os.eventfd_read(self._wake)
                elif gateway.process and key.fd == gateway.process.end:
                    code = self._forget(gateway, STOP_WAIT_S_MAX)
                    if code not in (0, -signal.SIGTERM):
                        self._note(f"{gateway.name} ended with {code} when it was told to stop")
                elif gateway.process:
                    self._hear(gateway.process)

    @contextmanager
    def _signals(self) -> Iterator[None]:
        """SIGTERM and Ctrl-C only count and wake the loop, while the block runs."""

        def asked(_number: int, _frame: FrameType | None) -> None:
            self._stops += 1
            os.eventfd_write(self._wake, 1)

        before = {number: signal.signal(number, asked) for number in (signal.SIGTERM, signal.SIGINT)}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
            self._selector.close()
            os.close(self._wake)
