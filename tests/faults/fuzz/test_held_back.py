"""Proves that a client which dies while its gateway holds it back harms nobody: ZeroMQ must not wait for room in a queue then."""

import subprocess
import sys
import textwrap

import pytest

from tests.ports import free_port

# A heartbeat on a connection that broke while its queue was full ends the process (libzmq 4.3.5): the port is in one of its own.
PORT = """
    import sys, time
    from gateway.core import limits
    limits.CONNECTION_BEAT_MS = 50
    from gateway.node.port import ClientPort
    port = ClientPort("127.0.0.1", int(sys.argv[1]))
    print("listens", flush=True)
    sys.stdin.readline()
    time.sleep(0.5)
    got = 0
    while messages := port.drain(256, 1 << 20):
        got += len(messages)
    print(got, flush=True)
"""
CLIENT = """
    import os, signal, sys, time, zmq
    socket = zmq.Context().socket(zmq.DEALER)
    socket.set(zmq.SNDHWM, 0)
    socket.connect(f"tcp://127.0.0.1:{sys.argv[1]}")
    for _ in range(2000):
        socket.send(b"x" * 1000)
    time.sleep(0.3)
    os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.faults
def test_a_client_that_dies_while_it_is_held_back_ends_nobody() -> None:
    number = str(free_port())
    command = [sys.executable, "-c", textwrap.dedent(PORT), number]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as port:
        assert port.stdin is not None
        assert port.stdout is not None
        assert port.stdout.readline() == "listens\n"
        client = subprocess.run([sys.executable, "-c", textwrap.dedent(CLIENT), number], check=False, timeout=60)
        assert client.returncode == -9
        port.stdin.write("\n")
        port.stdin.flush()
        assert int(port.stdout.readline() or "0") > 0
    assert port.returncode == 0
