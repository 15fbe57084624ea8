"""Tests of a real gateway process: its ready line, an orderly stop, no remaining process, and clear errors."""

from __future__ import annotations

import http.client
import itertools
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import zmq

from tests.support.gateway_process import GatewayProcess
from tests.support.processes import alive, expect_end
from tests.support.waiting import wait_until
from tutti import Producer
from tutti import limits as common_limits
from tutti.data.client_protocol import PROTOCOL, Hello, OpenTopic, Status, encode_control
from tutti.errors import disk_remedy
from tutti.io.admin import AdminClient
from tutti_gateway.core import limits


@pytest.fixture
def gateway(tmp_path: Path) -> Iterator[GatewayProcess]:
    with GatewayProcess(tmp_path) as gateway:
        yield gateway


def refused_start(gateway: GatewayProcess) -> tuple[int, str]:
    """Start a gateway that must not come up; its exit code and last words."""
    gateway.start(wait=False)
    code = gateway.wait_end()
    return code, gateway.log_tail().strip().splitlines()[-1]


def test_ready_line_and_status_identify_the_gateway(gateway: GatewayProcess) -> None:
    assert gateway.ready["ready"] is True
    assert gateway.ready["url"] == gateway.url
    assert gateway.ready["name"] == gateway.name
    assert gateway.ready["pid"] == gateway.pid
    assert gateway.ready["data"] == str(gateway.data)
    with AdminClient(gateway.url) as control:
        status = control.status()
    assert (status["gateway"], status["pid"], status["group"]) == ("g1", gateway.pid, "test")
    assert status["state"] == "primary"
    assert status["view"]["coordinator"] == "g1"
    assert status["view"]["members"] == ["g1"]
    assert (status["frontier"], status["start"]) == (0, 0)
    assert len(status["log"]) == 32


def test_sigterm_finishes_requests_in_flight(gateway: GatewayProcess) -> None:
    reads_pid = reads_process(gateway)
    with Producer(gateway.url, producer="p", delivery_timeout=60) as producer:
        receipts = [producer.send("t", b"x" * 100) for _ in range(20_000)]
        receipts[0].result(30)
        assert gateway.stop() == 0
        assert not alive(reads_pid)
        gateway.start()
        offsets = [receipt.result(60) for receipt in receipts]
    assert offsets == list(range(20_000))


def healthy(gateway: GatewayProcess) -> bool:
    connection = http.client.HTTPConnection("127.0.0.1", gateway.port + 3, timeout=2)
    try:
        connection.request("GET", "/healthz")
        return connection.getresponse().status == 200
    except OSError:
        return False
    finally:
        connection.close()


def reads_process(gateway: GatewayProcess) -> int:
    with AdminClient(gateway.url) as control:
        return int(control.status()["reads_process"]["pid"])


@pytest.mark.parametrize(
    ("stopped", "started_again"),
    [(False, False), (True, True), *(pytest.param(*one, marks=pytest.mark.soak) for one in ((False, True), (True, False)))],
)
def test_the_reads_process_does_not_outlive_a_killed_gateway(gateway: GatewayProcess, stopped: bool, started_again: bool) -> None:
    if started_again:
        before = reads_process(gateway)
        os.kill(before, signal.SIGKILL)
        wait_until(lambda: reads_process(gateway) not in (0, before))
    pid = reads_process(gateway)
    assert alive(pid)
    if stopped:
        wait_until(lambda: healthy(gateway))
        os.kill(pid, signal.SIGSTOP)
    gateway.kill()
    expect_end(pid)
    gateway.start()  # its ports are free


def test_a_dead_reads_process_restarts_while_commits_continue(gateway: GatewayProcess) -> None:
    pid = reads_process(gateway)
    os.kill(pid, signal.SIGKILL)
    with Producer(gateway.url) as producer:
        assert producer.send("t", b"x").result(10) == 0
    wait_until(lambda: reads_process(gateway) not in (0, pid))
    wait_until(lambda: healthy(gateway))


def test_two_signals_end_it_too(gateway: GatewayProcess) -> None:
    os.kill(gateway.pid, signal.SIGTERM)
    os.kill(gateway.pid, signal.SIGINT)
    assert gateway.wait_end() == 0


def test_a_signal_to_all_its_processes_is_no_error(gateway: GatewayProcess) -> None:
    """As service managers send it: the reads process got its signal, and the stopping gateway restarted it."""
    os.kill(reads_process(gateway), signal.SIGTERM)
    os.kill(gateway.pid, signal.SIGTERM)
    assert gateway.wait_end() == 0
    log = gateway.log_tail()
    assert "as asked" in log
    assert "reads process ended" not in log


HANGING = """
import os, sys, threading, time
from tutti_gateway.config import load_config
from tutti.log.files.storage import Storage
from tutti_gateway.core import limits
from tutti_gateway.node.main import run

limits.INLINE_FAST_SYNCS, limits.INLINE_FAST_US = 2, 1_000_000
sync = Storage.sync

def hanging(self, fd):
    if threading.current_thread().name == sys.argv[4] and os.path.exists(sys.argv[2]):
        open(sys.argv[3], "w").close()
        time.sleep(600)
    sync(self, fd)

Storage.sync = hanging
sys.exit(run(load_config(sys.argv[1])))
"""


@pytest.mark.parametrize("thread", ["disk", "loop"])
def test_a_second_signal_ends_it_though_its_disk_hangs_and_a_third_changes_nothing(tmp_path: Path, thread: str) -> None:
    gateway = GatewayProcess(tmp_path)
    hang, hanging = tmp_path / "hang", tmp_path / "hanging"
    with gateway.log.open("ab") as log:
        gateway.process = subprocess.Popen(
            [sys.executable, "-c", HANGING, str(gateway.config), str(hang), str(hanging), thread],
            stdout=subprocess.PIPE,
            stderr=log,
        )
    context = zmq.Context()
    try:
        gateway.wait_ready()
        hang.touch()
        with context.socket(zmq.DEALER) as client:
            client.set(zmq.LINGER, 0)
            client.connect(f"tcp://127.0.0.1:{gateway.port}")
            client.send(encode_control(Hello(PROTOCOL, "test", bytes(16))))
            numbers = itertools.count(1)

            def hangs() -> bool:
                number = next(numbers)
                client.send(encode_control(OpenTopic(number, f"t{number}")))
                return hanging.exists()

            wait_until(hangs)  # the thread "loop" syncs only after some fast syncs
            client.send(encode_control(Status(1)))
            wait_until(lambda: bool(client.poll(0)) and b"StatusAnswer" in client.recv())
            began = time.monotonic()
            os.kill(gateway.pid, signal.SIGTERM)
            wait_until(lambda: "stopping: no new records are accepted" in gateway.log_tail())
            os.kill(gateway.pid, signal.SIGTERM)
            wait_until(lambda: "second signal" in gateway.log_tail())
            os.kill(gateway.pid, signal.SIGTERM)
            assert gateway.wait_end() == 0
        assert time.monotonic() - began < (limits.DISK_STOP_US_MAX + common_limits.STOP_US_MAX) / 2e6
        assert "the disk hangs: the gateway exits without waiting for it" in gateway.log_tail()
    finally:
        context.term()
        if gateway.process.poll() is None:
            gateway.kill()


@pytest.mark.parametrize(("distance", "whose"), [(0, "clients"), (2, "reads"), (3, "admin")])
def test_a_port_in_use_is_one_sentence(tmp_path: Path, distance: int, whose: str) -> None:
    gateway = GatewayProcess(tmp_path)
    with socket.create_server(("127.0.0.1", gateway.port + distance)):
        code, words = refused_start(gateway)
    assert code == 1
    assert words.startswith("error: ")
    assert f"port {gateway.port + distance} on 127.0.0.1 ({whose}) is in use" in words


def test_a_locked_directory_names_its_owner(gateway: GatewayProcess, tmp_path: Path) -> None:
    other = GatewayProcess(tmp_path)  # other ports, same name and directory
    code, words = refused_start(other)
    assert code == 1
    assert f"in use by process {gateway.pid}" in words


def test_the_directory_of_another_gateway_is_refused(gateway: GatewayProcess, tmp_path: Path) -> None:
    assert gateway.stop() == 0
    other = GatewayProcess(tmp_path, "g2")
    other.config.write_text(other.config.read_text().replace(str(other.data), str(gateway.data)))
    code, words = refused_start(other)
    assert code == 2
    assert "belongs to gateway 'g1', not to 'g2'" in words


def test_damage_halts_the_start_with_the_command_to_run(gateway: GatewayProcess) -> None:
    with Producer(gateway.url) as producer:
        offsets = [producer.send("t", b"x" * 1000).result(30) for _ in range(50)]
    assert gateway.stop() == 0
    (segment,) = (gateway.data / "log").glob("0*.seg")
    with segment.open("r+b") as file:
        frame = file.read(1 << 20).find(b"TUT1", 40_000)
        file.seek(frame + 30)
        file.write(b"\xff" * 8)
    code, words = refused_start(gateway)
    assert len(offsets) == 50
    assert code == 4
    assert "tutti log repair" in words
    assert "offset" in words


@pytest.mark.parametrize("gone", ["log/0*.seg", "log"])
def test_a_lost_file_halts_the_start_with_the_remedy_of_a_group_and_of_one_alone(gateway: GatewayProcess, gone: str) -> None:
    """Both, whatever founders the configuration names: others may have been added to a founder of one, or have left since."""
    with Producer(gateway.url) as producer:
        producer.send("t", b"x").result(30)
    assert gateway.stop() == 0
    for path in gateway.data.glob(gone):
        path.rename(gateway.data.parent / f"away-{path.name}")
    remedy = (
        "If group 'test' has other gateways (`tutti members list` at one of them shows them), those have the log: move "
        f"{gateway.data} aside, start g1 with an empty directory there, and {disk_remedy('g1')}. If g1 is its only "
        f"gateway, no other copy exists: restore {gateway.data} from a backup, or the records from the archive"
    )
    code, words = refused_start(gateway)
    assert code == 4
    assert words.endswith(remedy)
    members = f'members = {{ g1 = "127.0.0.1:{gateway.port}", g2 = "127.0.0.1:1" }}'
    gateway.config.write_text(gateway.config.read_text().replace("[group]\n", f"[group]\n{members}\n"))
    code, words = refused_start(gateway)
    assert code == 4
    assert words.endswith(remedy)


def test_a_full_disk_under_its_log_and_its_ready_line_does_not_stop_a_gateway(gateway: GatewayProcess) -> None:
    assert gateway.stop() == 0
    with Path("/dev/full").open("wb") as full:
        command = [sys.executable, "-m", "tutti_gateway", "serve", "--config", str(gateway.config)]
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=full, stderr=full)
    try:
        with AdminClient(gateway.url, timeout=30) as control:
            wait_until(lambda: control.status()["state"] == "primary")
        with Producer(gateway.url) as producer:
            assert producer.send("t", b"x").result(20) == 0
        process.terminate()
        assert process.wait(40) == 0
    finally:
        process.kill()
        process.wait()
