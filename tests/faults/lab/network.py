"""Hosts of their own on one machine: network namespaces on one switch, and what may happen to the wires between them.

Everything lies inside of namespaces made here, the switch too: no interface, rule or packet of it is in the machine's own network.
Names carry the process that made them and when it was started, so that what a killed test left behind is found and taken away by
the next one (`sweep`).
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import subprocess
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

PREFIX = "tutti-lab"
NAMESPACES = Path("/run/netns")
SWITCH = "switch"
_NET = "192.0.2"  # TEST-NET-1: nobody's, wherever the machine stands
_CLONE_NEWNET = 0x40000000
_LIBC = ctypes.CDLL(None, use_errno=True)
_made = 0

Result = TypeVar("Result")


class Rule(NamedTuple):
    """`host` does not hear a share of what comes from the address `source` ("" is any)."""

    host: str
    source: str
    share: float


def run(*command: str, text: str | None = None) -> str:
    """Run a command to its end; what it printed. RuntimeError with its words when it fails."""
    done = subprocess.run(command, input=text, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)} ended with {done.returncode}: {done.stderr.strip() or done.stdout.strip()}")
    return done.stdout


def started_at(pid: int) -> str:
    """When a process was started, in ticks since the machine's start: with its pid a name for ever. "" if there is none."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
    except OSError:
        return ""


def lab_name() -> str:
    """The beginning of all names of one lab of this process."""
    global _made  # noqa: PLW0603 - a process may make several, one after another
    _made += 1
    return f"{PREFIX}-{os.getpid()}-{started_at(os.getpid())}-{_made}"


def is_stale(name: str) -> bool:
    """Whether it was made by a lab whose process is gone."""
    parts = name.removeprefix(f"{PREFIX}-").split("-")
    return name.startswith(f"{PREFIX}-") and len(parts) > 2 and started_at(int(parts[0])) != parts[1]


def sweep() -> list[str]:
    """Take away what labs of processes that are gone left: their gateways, namespaces and file systems. The names of it."""
    swept = []
    for name in sorted(entry.name for entry in NAMESPACES.iterdir()) if NAMESPACES.exists() else []:
        if is_stale(name):
            with contextlib.suppress(RuntimeError):  # another lab sweeps too
                remove_namespace(name)
                swept.append(name)
    for line in Path("/proc/mounts").read_text().splitlines():
        source, place, *_ = line.split()
        if is_stale(source):
            with contextlib.suppress(RuntimeError):
                run("umount", "--lazy", place)
                swept.append(source)
    return swept


def remove_namespace(name: str) -> None:
    """End what runs in it, then take it away; its interfaces go with it."""
    for pid in run("ip", "netns", "pids", name).split():
        with contextlib.suppress(ProcessLookupError):
            os.kill(int(pid), signal.SIGKILL)
    run("ip", "netns", "delete", name)


class Network:
    """Hosts on one switch. Use it as a context: whatever happened, nothing of it stays."""

    def __init__(self, hosts: list[str]) -> None:
        """Nothing is made yet."""
        self.hosts = hosts
        self.name = lab_name()
        self.addresses = {host: f"{_NET}.{number}" for number, host in enumerate(hosts, start=10)}
        self._rules: list[Rule] = []

    def namespace(self, host: str) -> str:
        """The name of a host's namespace."""
        return f"{self.name}-{host}"

    def inside(self, host: str) -> list[str]:
        """What is put before a command so that it runs on `host`, as the same process."""
        return ["nsenter", f"--net={NAMESPACES / self.namespace(host)}", "--"]

    def __enter__(self) -> Network:
        """Make it."""
        sweep()
        switch = self.namespace(SWITCH)
        try:
            for host in (SWITCH, *self.hosts):
                run("ip", "netns", "add", self.namespace(host))
            lines = ["link set lo up", "link add bridge type bridge", "link set bridge up"]
            for host in self.hosts:
                lines += [
                    f"link add {self._port(host)} type veth peer name eth0 address {self._mac(host)} netns {self.namespace(host)}",
                    f"link set {self._port(host)} master bridge up",
                ]
            run("ip", "-netns", switch, "-batch", "-", text="\n".join(lines))
            for host, address in self.addresses.items():
                own = ["link set lo up", f"address add {address}/24 dev eth0", "link set eth0 up"]
                # Known from the beginning: the second that a host needs to ask for them anew is none of the fault under test.
                own += [
                    f"neighbour add {self.addresses[other]} lladdr {self._mac(other)} dev eth0 nud permanent"
                    for other in self.hosts
                    if other != host
                ]
                run("ip", "-netns", self.namespace(host), "-batch", "-", text="\n".join(own))
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        """Take it away, with every process that still runs in it."""
        for host in (*self.hosts, SWITCH):
            if (NAMESPACES / self.namespace(host)).exists():
                remove_namespace(self.namespace(host))

    def _port(self, host: str) -> str:
        return f"port{self.hosts.index(host)}"

    def _mac(self, host: str) -> str:
        return f"02:00:00:00:00:{self.hosts.index(host) + 1:02x}"

    # What may happen to it

    def _apply(self, hosts: set[str]) -> None:
        for host in hosts:
            lines = ["*filter", ":INPUT ACCEPT [0:0]", ":FORWARD ACCEPT [0:0]", ":OUTPUT ACCEPT [0:0]"]
            for rule in self._rules:
                if rule.host == host:
                    chance = f" -m statistic --mode random --probability {rule.share:.4f}" if rule.share < 1 else ""
                    lines.append("-A INPUT" + (f" -s {rule.source}" if rule.source else "") + chance + " -j DROP")
            run(*self.inside(host), "iptables-restore", text="\n".join([*lines, "COMMIT", ""]))

    @contextlib.contextmanager
    def ruled(self, rules: list[Rule]) -> Iterator[None]:
        """These rules hold within the block."""
        hosts = {rule.host for rule in rules}
        self._rules += rules
        self._apply(hosts)
        try:
            yield
        finally:
            for rule in rules:
                self._rules.remove(rule)
            self._apply(hosts)

    def deaf(self, host: str, to: str, share: float = 1.0) -> list[Rule]:
        """`host` does not hear (a share of) what `to` sends; `to` hears `host`."""
        return [Rule(host, self.addresses[to], share)]

    def cut(self, one: str, other: str) -> list[Rule]:
        """Two hosts do not hear each other; everybody else hears both."""
        return [*self.deaf(one, other), *self.deaf(other, one)]

    def lossy(self, host: str, share_in: float, share_out: float) -> list[Rule]:
        """A share of what comes to `host` and of what it sends is lost."""
        others = [other for other in self.hosts if other != host]
        rules = [rule for other in others for rule in self.deaf(other, host, share_out)] if share_out else []
        return rules + ([Rule(host, "", share_in)] if share_in else [])

    @contextlib.contextmanager
    def unplugged(self, host: str) -> Iterator[None]:
        """The wire is out at the switch within the block: the host goes on and nobody is told."""
        switch = self.namespace(SWITCH)
        run("ip", "-netns", switch, "link", "set", self._port(host), "down")
        try:
            yield
        finally:
            run("ip", "-netns", switch, "link", "set", self._port(host), "up")

    @contextlib.contextmanager
    def narrow(self, host: str, kbit_s: int) -> Iterator[None]:
        """The wire carries no more than that, each way, within the block."""
        ways = [(self.namespace(SWITCH), self._port(host)), (self.namespace(host), "eth0")]
        limit = ["tbf", "rate", f"{kbit_s}kbit", "burst", "16kb", "latency", "200ms"]
        for namespace, device in ways:
            run("tc", "-netns", namespace, "qdisc", "replace", "dev", device, "root", *limit)
        try:
            yield
        finally:
            for namespace, device in ways:
                run("tc", "-netns", namespace, "qdisc", "delete", "dev", device, "root")

    def call(self, host: str, function: Callable[[], Result]) -> Result:
        """What `function` returns when its sockets are made on `host`: it runs in a thread that goes there."""
        found: list[Any] = []

        def there() -> None:
            try:
                with (NAMESPACES / self.namespace(host)).open("rb") as entry:
                    if _LIBC.setns(entry.fileno(), _CLONE_NEWNET):
                        raise OSError(ctypes.get_errno(), f"cannot enter the namespace of {host}")
                found.append((function(), None))
            except Exception as error:  # noqa: BLE001 - raised again in the thread that asked
                found.append((None, error))

        thread = threading.Thread(target=there, name=f"on {host}")
        thread.start()
        thread.join()
        result, error = found[0]
        if error is not None:
            raise error
        return result  # type: ignore[no-any-return]  # what the function gave
