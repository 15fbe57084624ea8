"""Proves that a client which dies while its gateway holds it back harms nobody, and what it said is there."""

import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

from tests.support.ports import free_port

PORT = """
    import sys, time
    from tutti_gateway.core import limits
    limits.CONNECTION_BEAT_MS = 50
    from tutti_gateway.node.clients.port import ClientPort
    port = ClientPort("127.0.0.1", int(sys.argv[1]))
    print("listens", flush=True)
    got = 0
    while not got:
        got += len(port.drain(1, 1))
    print("holds back", flush=True)
    sys.stdin.readline()
    while messages := port.drain(256, 1 << 20):
        got += len(messages)
    print(got, flush=True)
"""
CLIENT = """
    import sys, time, zmq
    socket = zmq.Context().socket(zmq.DEALER)
    socket.set(zmq.SNDHWM, 0)
    socket.connect(f"tcp://127.0.0.1:{sys.argv[1]}")
    socket.send(b"first")
    sys.stdin.readline()
    for _ in range(2000):
        socket.send(b"x" * 1000)
    time.sleep(600)
"""
WAIT_S = 60


def unread(port: str) -> int:
    """Bytes that lie in the kernel for who listens there."""
    lines = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    return sum(int(line[4].partition(":")[2], 16) for line in lines if line[1].endswith(f":{int(port):04X}") and line[3] == "01")


@pytest.mark.faults
def test_a_throttled_client_that_dies_harms_no_other() -> None:
    number = str(free_port())
    command = [sys.executable, "-c", textwrap.dedent(PORT), number]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as port:
        assert port.stdin is not None
        assert port.stdout is not None
        assert port.stdout.readline() == "listens\n"
        client = [sys.executable, "-c", textwrap.dedent(CLIENT), number]
        with subprocess.Popen(client, stdin=subprocess.PIPE, text=True) as dying:
            assert dying.stdin is not None
            assert port.stdout.readline() == "holds back\n"
            dying.stdin.write("\n")
            dying.stdin.flush()
            deadline = time.monotonic() + WAIT_S
            while unread(number) < 10_000:
                assert time.monotonic() < deadline, "nothing of it comes"
                time.sleep(0.01)
            dying.kill()
        port.stdin.write("\n")
        port.stdin.flush()
        assert int(port.stdout.readline() or "0") > 1
    assert port.returncode == 0
