"""JGroups: three members of its own MPerf, SEQUENCER in the stack, over TCP and over UDP multicast. It keeps nothing on disk."""

from __future__ import annotations

import re
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from benchmarks.fleet import free_bases
from benchmarks.peers import fetched
from benchmarks.peers.work import Running
from tutti.runtime.child_processes import end_with_this_process

_JAR = "jgroups-5.5.6", ("org.jgroups:jgroups:5.5.6.Final",)
_SECONDS = 8
_START_S = 60.0
_TCP = """<TCP bind_addr="127.0.0.1" bind_port="{port}" port_range="0" tcp_nodelay="true" diag.enabled="false"
 thread_pool.max_threads="200"/><TCPPING initial_hosts="{hosts}" port_range="0"/>"""
_UDP = """<UDP bind_addr="127.0.0.1" mcast_addr="239.8.8.8" mcast_port="{multicast}" ip_ttl="0" diag.enabled="false"
 thread_pool.max_threads="200"/><PING/>"""
_STACK = """<config xmlns="urn:org:jgroups">{transport}
<MERGE3 min_interval="10s" max_interval="30s"/><FD_SOCK2/><FD_ALL3 timeout="40s" interval="5s"/>
<VERIFY_SUSPECT2 timeout="1.5s"/>
<pbcast.NAKACK2 use_mcast_xmit="false"/><UNICAST3/><pbcast.STABLE desired_avg_gossip="50s" max_bytes="8M"/>
<pbcast.GMS print_local_addr="false" join_timeout="2s"/><SEQUENCER/>
<UFC max_credits="4M" min_threshold="0.4"/><MFC max_credits="4M" min_threshold="0.4"/><FRAG2 frag_size="60K"/></config>
"""
_RESULT = re.compile(r"Average/node:\s+[\d,]+ msgs.*?msgs/sec=([\d,.]+)")


class _Members(Running):
    def __init__(self, processes: list[subprocess.Popen[bytes]], said: Path) -> None:
        self._processes, self._said = processes, said

    def rate(self, size: int, count: int) -> float:
        """What each member delivers a second while all three send: a sender gets no receipt."""
        del count  # MPerf runs for a time
        begin = self._said.stat().st_size
        for line in ("7", str(size), "1"):
            self._type(line)
        deadline = time.monotonic() + _SECONDS + _START_S
        while time.monotonic() < deadline:
            found = _RESULT.search(self._said.read_text(errors="replace")[begin:])
            if found:
                return float(found[1].replace(",", ""))
            time.sleep(0.2)
        raise SystemExit(f"MPerf told no result: {self._said.read_text(errors='replace')[-1000:]}")

    def _type(self, line: str) -> None:
        typed = self._processes[0].stdin
        assert typed is not None  # a pipe was asked for
        typed.write(f"{line}\n".encode())
        typed.flush()
        time.sleep(0.5)  # it throws away what was typed before it asked

    def members(self) -> Sequence[int]:
        return [process.pid for process in self._processes]


class JGroups:
    """Three members over `transport`."""

    promise = "delivered at a member, in memory"

    def __init__(self, transport: str) -> None:
        """`transport`: "TCP" or "UDP"."""
        self._transport = transport
        self.name = f"JGroups SEQUENCER, {transport}"

    def lacking(self) -> str:
        """Its jar."""
        return "" if fetched.jars(*_JAR, alone=True) else "its jar (Maven), or Java"

    @contextmanager
    def running(self, directory: Path) -> Iterator[Running]:
        """Start them; the first one is told what to do."""
        jars = fetched.jars(*_JAR, alone=True)
        assert jars is not None  # asked before
        bases = free_bases(4)
        hosts = ",".join(f"127.0.0.1[{base}]" for base in bases[:3])
        processes: list[subprocess.Popen[bytes]] = []
        with tempfile.TemporaryDirectory(prefix="jgroups-", dir=directory) as own:
            try:
                for number, base in enumerate(bases[:3]):
                    transport = (_TCP if self._transport == "TCP" else _UDP).format(port=base, hosts=hosts, multicast=bases[3])
                    stack = Path(own, f"{number}.xml")
                    stack.write_text(_STACK.format(transport=transport))
                    java = [
                        "java",
                        "-Xmx1g",
                        "-Djava.net.preferIPv4Stack=true",
                        "-Djgroups.bind_addr=127.0.0.1",
                        "-cp",
                        f"{jars}/*",
                    ]
                    perf = ["org.jgroups.tests.perf.MPerf", "-props", str(stack), "-name", f"m{number}", "-time", str(_SECONDS)]
                    with Path(own, f"{number}.out").open("wb") as said:
                        started = subprocess.Popen(
                            [*java, *perf, *([] if number == 0 else ["-nohup"])],
                            stdin=subprocess.PIPE,
                            stdout=said,
                            stderr=said,
                            preexec_fn=end_with_this_process(signal.SIGKILL),  # noqa: PLW1509 - it calls prctl(2) alone
                        )
                    processes.append(started)
                    _wait(Path(own, f"{number}.out"), number + 1, started)
                yield _Members(processes, Path(own, "0.out"))
            finally:
                for process in processes:
                    process.kill()
                    process.wait()


def _wait(said: Path, members: int, process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + _START_S
    while f"] ({members}) [" not in said.read_text(errors="replace"):
        if process.poll() is not None or time.monotonic() > deadline:
            raise SystemExit(f"a member of JGroups did not join: {said.read_text(errors='replace')[-1500:]}")
        time.sleep(0.1)
