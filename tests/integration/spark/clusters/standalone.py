"""Spark's standalone cluster on loopback addresses: a master, and workers that a test kills with their executors."""

from __future__ import annotations

import os
import signal
import subprocess
import time
import urllib.request
from pathlib import Path
from typing import Self

from tests.integration.spark.clusters import recipes
from tests.support import spark_classes
from tests.support.ports import free_ports
from tests.support.processes import expect_end
from tutti.runtime.child_processes import end_with_this_process

_WAIT_S = 60


class Standalone:
    """The cluster; workers by number, from 1, each on a loopback address of its own."""

    def __init__(self, root: Path, workers: int = 2) -> None:
        self._root = root
        self._port, self._page = free_ports(2)
        self._count = workers
        self._processes: dict[int, subprocess.Popen[bytes]] = {}

    @property
    def url(self) -> str:
        """Of its master."""
        return f"spark://127.0.0.1:{self._port}"

    def _start(self, number: int, command: str, host: str) -> None:
        """Run one of the page's commands, 0 for the master."""
        log = (self._root / f"{number}.log").open("wb")
        self._processes[number] = subprocess.Popen(
            ["bash", "-ec", f"exec {command}"],
            cwd=self._root,
            env=recipes.environment(
                SPARK_LOCAL_IP=host,
                SPARK_DAEMON_JAVA_OPTS=f"-Dspark.master.rest.enabled=false {spark_classes.options()}",
                SPARK_DAEMON_MEMORY="256m",
            ),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            preexec_fn=end_with_this_process(signal.SIGKILL),  # noqa: PLW1509 - it calls prctl(2) alone
        )
        log.close()

    def start_worker(self, number: int) -> None:
        """Start one, or start it again."""
        host = f"127.0.0.{number}"
        names = {"spark://master:7077": self.url, "--cores 4": "--cores 1", "--memory 8g": "--memory 1g"}
        worker = recipes.commands("A standalone cluster", names)[1]
        self._start(number, f"{worker} --host {host} --webui-port 0 --work-dir {self._root / str(number)}", host)

    def kill_worker(self, number: int) -> None:
        """Kill it and its executors with SIGKILL, as if the host were gone."""
        worker = self._processes.pop(number)
        children = Path(f"/proc/{worker.pid}/task").glob("*/children")
        executors = [int(pid) for listed in children for pid in listed.read_text().split()]
        assert executors, "no executor runs there"
        for pid in (worker.pid, *executors):
            os.kill(pid, signal.SIGKILL)
        worker.wait()
        expect_end(*executors)

    def wait_ready(self) -> None:
        """Wait until all workers that run are the master's."""
        deadline = time.monotonic() + _WAIT_S
        while self._alive() < len(self._processes) - 1:
            assert time.monotonic() < deadline, (self._root / "0.log").read_text()[-3000:]
            time.sleep(0.1)

    def _alive(self) -> int:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self._page}/json/") as page:
                return str(page.read().decode()).count('"state" : "ALIVE"')
        except OSError:
            return 0

    def __enter__(self) -> Self:
        """Start it."""
        names = {"--host master --port 7077": f"--host 127.0.0.1 --port {self._port} --webui-port {self._page}"}
        self._start(0, recipes.commands("A standalone cluster", names)[0], "127.0.0.1")
        for number in range(1, self._count + 1):
            self.start_worker(number)
        try:
            self.wait_ready()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        """Leave no process behind: executors end with their worker."""
        for process in self._processes.values():
            process.terminate()
        for process in self._processes.values():
            process.wait(_WAIT_S)
