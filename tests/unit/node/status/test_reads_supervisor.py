"""Tests of the reads supervisor: the reads process restarts after it dies or hangs, stops on request, and detects the end of its
gateway.
"""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, cast

import pytest

from tests.support.certificates import certificate
from tests.support.ports import free_port
from tests.unit.node.fakes import LOG
from tutti import limits as common_limits
from tutti_gateway.core import limits
from tutti_gateway.node.status.reads_supervisor import Notifier, Supervisor

if TYPE_CHECKING:
    from structlog.typing import FilteringBoundLogger

# Listens, and ends when its pipe does, as the reads process does.
CHILD = """
import os, select, socket, sys
fd, port = int(sys.argv[1]), int(sys.argv[2])
listener = socket.create_server(("127.0.0.1", port))
os.set_blocking(fd, True)
while os.read(fd, 100):
    print("told", flush=True)
"""


def wait_for(condition: Callable[[], bool], seconds: float = 20) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def alive(pid: int) -> bool:
    return Path(f"/proc/{pid}").exists()


def test_a_dead_child_is_restarted_and_a_living_one_ends_on_request(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "READS_RESTART_US_MIN", 1000)
    notifier, port, ready = Notifier(), free_port(), []
    command = [sys.executable, "-c", CHILD, str(notifier.read_fd), str(port)]
    supervisor = Supervisor(command, [notifier.read_fd], [("127.0.0.1", port)])
    supervisor.attach(LOG, lambda: ready.append(1))
    supervisor.start()
    wait_for(lambda: bool(ready))
    first = supervisor.pid
    os.kill(first, signal.SIGKILL)
    wait_for(lambda: supervisor.pid not in (0, first))
    second = supervisor.pid
    supervisor.stop()
    assert not alive(second)
    assert supervisor.starts == 2
    assert ready == [1]
    notifier.close()


def test_a_child_that_ends_during_the_stop_stays_down_without_a_warning() -> None:
    """A SIGTERM to the process group ends both. It was told as an error, and the next child outlived the words of its end."""
    told: list[str] = []
    log = SimpleNamespace(error=lambda what, **_: told.append(what))
    supervisor = Supervisor([sys.executable, "-c", "import time; time.sleep(60)"], [], [("127.0.0.1", 1)])
    supervisor.attach(cast("FilteringBoundLogger", log), lambda: None)
    supervisor.start()
    wait_for(lambda: supervisor.pid != 0)
    os.kill(supervisor.pid, signal.SIGTERM)
    wait_for(lambda: supervisor.pid == 0)
    supervisor.stop_restarting()  # the gateway hears of it after its child is gone
    time.sleep(0.5)
    supervisor.stop()
    assert (supervisor.starts, told) == (1, [])


def test_a_child_that_does_not_listen_to_sigterm_is_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "READS_END_US_MAX", 200_000)
    deaf = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print(flush=True); time.sleep(60)"
    supervisor = Supervisor([sys.executable, "-c", deaf], [], [("127.0.0.1", 1)])
    supervisor.start()
    wait_for(lambda: supervisor.pid != 0)
    pid = supervisor.pid
    supervisor.stop()
    assert not alive(pid)


# Answers each connection by what is told: a word, its end, or nothing.
ANSWERING = """
import socket, ssl, sys
held = []
for connection, _ in iter(socket.create_server(("127.0.0.1", int(sys.argv[1]))).accept, None):
    if sys.argv[2] in ("hand", "no hand"):
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        if sys.argv[2] == "hand":
            context.load_cert_chain(sys.argv[3], sys.argv[4])
        try:
            connection = context.wrap_socket(connection, server_side=True)
        except OSError:
            pass
    elif sys.argv[2] == "word":
        connection.recv(100)
        connection.sendall(b"x")
    elif sys.argv[2] == "nothing":
        held.append(connection)
        continue
    connection.close()
"""


@pytest.fixture
def quick_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, microseconds in (
        ("READS_RESTART_US_MIN", 1000),
        ("READS_CHECK_US", 20_000),
        ("READS_ANSWER_US_MAX", 100_000),
        ("READS_SILENT_US_MAX", 1_500_000),
        ("READS_END_US_MAX", 100_000),
    ):
        monkeypatch.setattr(limits, name, microseconds)
    monkeypatch.setattr(common_limits, "POLL_US_MAX", 20_000)


@pytest.mark.slow
@pytest.mark.usefixtures("quick_looks")
@pytest.mark.parametrize("answer", ["word", "end", "hand", "no hand"])
def test_a_child_that_hangs_is_replaced(answer: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(limits, "READS_SILENT_US_MAX", 60_000_000)  # until it is up
    port, ready = free_port(), []
    command = [sys.executable, "-c", ANSWERING, str(port), answer, str(tmp_path / "c.pem"), str(tmp_path / "c.key")]
    certificate(tmp_path, "c")
    supervisor = Supervisor(command, [], [("127.0.0.1", port)], encrypted="hand" in answer)
    supervisor.attach(LOG, lambda: ready.append(1))
    supervisor.start()
    wait_for(lambda: bool(ready))
    first = supervisor.pid
    monkeypatch.setattr(limits, "READS_SILENT_US_MAX", 3_000_000)
    time.sleep(4)  # many looks, each answered
    assert (supervisor.pid, supervisor.starts) == (first, 1)
    os.kill(first, signal.SIGSTOP)
    wait_for(lambda: supervisor.pid not in (0, first))
    assert not alive(first)
    supervisor.stop()
    assert ready == [1]


@pytest.mark.usefixtures("quick_looks")
def test_a_child_that_listens_and_never_answers_is_replaced() -> None:
    port = free_port()
    supervisor = Supervisor([sys.executable, "-c", ANSWERING, str(port), "nothing"], [], [("127.0.0.1", port)])
    supervisor.start()
    wait_for(lambda: supervisor.starts == 2)
    supervisor.stop()


def test_a_command_that_cannot_run_does_not_stop_the_supervisor() -> None:
    supervisor = Supervisor(["no such program"], [], [])
    supervisor.start()
    supervisor.stop()
    assert supervisor.starts == 0


def test_notifying_never_blocks_and_the_pipe_ends_with_the_gateway() -> None:
    notifier = Notifier()
    for _ in range(100_000):
        notifier.notify()
    child = subprocess.Popen(
        [sys.executable, "-c", CHILD, str(notifier.read_fd), str(free_port())],
        pass_fds=[notifier.read_fd],
        stdout=subprocess.DEVNULL,
    )
    notifier.close()
    assert child.wait(20) == 0
