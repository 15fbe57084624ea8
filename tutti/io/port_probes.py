"""Port probes in threads: one probe for each address, shared by all callers that wait for it."""

from __future__ import annotations

import threading
from collections.abc import Callable

from tutti.common.address import Address
from tutti.common.fork import after_fork
from tutti.io.port_probe import ProbeResult, probe_port


class RunningProbe:
    """A running probe, which takes up to some seconds. `seen` holds the result after its end."""

    def __init__(self, address: Address) -> None:
        """Called by `look` alone."""
        self.address = address
        self.seen: ProbeResult | None = None
        self.wakes: list[Callable[[], None]] = []

    def run(self) -> None:
        """Probe the port, then wake all waiting callers."""
        seen = ProbeResult("it did not answer")
        try:
            seen = probe_port(self.address)
        finally:
            self.end(seen)

    def end(self, seen: ProbeResult) -> None:
        """Store the result and wake all waiting callers."""
        with _lock:
            self.seen = seen
            if _running.get(self.address) is self:
                del _running[self.address]
        for wake in self.wakes:
            wake()


_running: dict[Address, RunningProbe] = {}
_lock = threading.Lock()


def start_probe(address: Address, wake: Callable[[], None]) -> RunningProbe:
    """Start a probe of the address, or join the running one. `wake` is called when `seen` is set."""
    with _lock:
        running = _running.get(address)
        if running is not None:
            running.wakes.append(wake)
            return running
        begun = _running[address] = RunningProbe(address)
        begun.wakes.append(wake)
    try:
        threading.Thread(target=begun.run, name="tutti-look", daemon=True).start()
    except RuntimeError as error:  # no thread can be started
        begun.end(ProbeResult(f"it did not answer, and the port cannot be probed: {error}"))
    return begun


def _after_fork() -> None:
    global _lock  # noqa: PLW0603 - a thread that does not exist in the child may hold the old lock
    _lock = threading.Lock()
    _running.clear()


after_fork(_after_fork)
