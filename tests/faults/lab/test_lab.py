"""Proves that the lab does what it says: hosts reach each other or not, disks and clocks are wrong, nothing is left behind."""

import ctypes
import errno
import os
import socket
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

from tests.faults.lab import network
from tests.faults.lab.network import NAMESPACES, Network
from tests.faults.lab.shim import Shim, build

pytestmark = [pytest.mark.faults, pytest.mark.lab]
PORT = 9


def heard(net: Network, sender: str, receiver: str, count: int = 1) -> int:
    """How many of so many datagrams from one host arrive at another."""
    listener = net.call(receiver, lambda: socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
    talker = net.call(sender, lambda: socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
    with listener, talker:
        listener.bind((net.addresses[receiver], PORT))
        for number in range(count):
            talker.sendto(b"%d" % number, (net.addresses[receiver], PORT))
        listener.settimeout(0.3)
        got = 0
        try:
            while got < count:
                listener.recv(64)
                got += 1
        except TimeoutError:
            pass
        return got


def test_hosts_reach_each_other_unless_a_rule_or_an_unplugged_link_prevents_it() -> None:
    with Network(["a", "b", "c"]) as net:
        assert heard(net, "a", "b") == 1
        with net.ruled(net.deaf("b", "a")):
            assert (heard(net, "a", "b"), heard(net, "b", "a"), heard(net, "c", "b")) == (0, 1, 1)
        with net.ruled(net.cut("a", "b")), net.ruled(net.cut("a", "c")):
            assert (heard(net, "b", "a"), heard(net, "c", "a"), heard(net, "b", "c")) == (0, 0, 1)
        with net.ruled(net.lossy("a", 0.0, 0.3)):
            assert 60 < heard(net, "a", "b", 200) < 190
        with net.ruled(net.lossy("a", 0.3, 0.0)):
            assert 60 < heard(net, "b", "a", 200) < 190
        with net.unplugged("a"):
            assert (heard(net, "a", "b"), heard(net, "b", "a"), heard(net, "b", "c")) == (0, 0, 1)
        with net.narrow("a", 256):
            assert heard(net, "a", "b") == 1
        assert [heard(net, one, other) for one in "abc" for other in "abc" if one != other] == [1] * 6


def test_networks_are_removed_even_after_a_kill() -> None:
    with Network(["a"]) as net:
        name = net.namespace("a")
        assert (NAMESPACES / name).exists()
        sleeper = subprocess.Popen([*net.inside("a"), "sh", "-c", "echo inside; exec sleep 60"], stdout=subprocess.PIPE)
        assert sleeper.stdout is not None
        assert sleeper.stdout.readline() == b"inside\n", "who is on its way in is not there yet"
    with sleeper:
        assert not (NAMESPACES / name).exists()
        assert sleeper.wait(60) == -9
    script = (
        "import os; from tests.faults.lab.network import Network; net = Network(['a']).__enter__(); print(net.name); os._exit(1)"
    )
    left = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False).stdout.strip()
    assert (NAMESPACES / f"{left}-a").exists()
    assert f"{left}-a" in network.sweep()
    assert not (NAMESPACES / f"{left}-a").exists()


def test_the_shim_fails_a_disk_and_sets_a_clock_on_demand(tmp_path: Path) -> None:
    shim = Shim(build(tmp_path), tmp_path / "control")
    script = textwrap.dedent("""
        import os, sys, time
        fd = os.open(sys.argv[1], os.O_RDWR | os.O_CREAT)
        def tried(what, *arguments):
            try:
                what(*arguments)
                return 0
            except OSError as error:
                return error.errno
        for _ in sys.stdin:
            told = [tried(os.pwritev, fd, [b"a"], 0), tried(os.pwrite, fd, b"a", 0), tried(os.fdatasync, fd), tried(os.fsync, fd),
                    tried(os.pread, fd, 1, 0), time.time_ns(), time.monotonic_ns()]
            print(*told, flush=True)
    """)
    command = [sys.executable, "-c", script, str(tmp_path / "file")]
    environment = {**os.environ, **shim.environment}
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment)
    assert process.stdin is not None
    assert process.stdout is not None

    def tell() -> list[int]:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write("\n")
        process.stdin.flush()
        return [int(word) for word in process.stdout.readline().split()]

    with process:
        assert tell()[:5] == [0] * 5
        shim.set("write_errno", errno.EIO)
        shim.set("sync_errno", errno.ENOSPC)
        shim.set("read_errno", errno.EIO)
        assert tell()[:5] == [errno.EIO, errno.EIO, errno.ENOSPC, errno.ENOSPC, errno.EIO]
        assert shim.hits == 5
        shim.calm()
        shim.clock(-86_400)
        *worked, now, steady = tell()
        assert worked == [0] * 5
        assert abs(now + 86_400 * 10**9 - time.time_ns()) < 10**10
        assert abs(steady - time.monotonic_ns()) < 10**10
        process.stdin.close()
    shim.close()


def test_the_calling_thread_keeps_its_network_namespace() -> None:
    with Network(["a"]) as net:
        own = os.readlink("/proc/thread-self/ns/net")
        assert net.call("a", lambda: os.readlink("/proc/thread-self/ns/net")) != own
        assert os.readlink("/proc/thread-self/ns/net") == own
        assert ctypes.get_errno() == 0
        with pytest.raises(ZeroDivisionError):
            net.call("a", lambda: 1 // 0)
