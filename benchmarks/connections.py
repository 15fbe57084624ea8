"""A yardstick for a connection a producer: bare sockets to one process, which passes on what came at once, has it synced by all,
and answers each connection, one round after the other. No headers, no log, no protocol, and one record under way on each.
"""

from __future__ import annotations

import contextlib
import select
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from tempfile import mkdtemp

from benchmarks.load.generator import Load, Message, run

WAIT_S = 60.0
_ANSWER = b"receipt."
_PACED_CONNECTIONS_MIN = 100
_FILE = """
import os, socket, sys
def opened(path):
    fd = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    os.posix_fallocate(fd, 0, 1 << 26)
    os.pwrite(fd, bytes(1 << 26), 0)
    os.fsync(fd)
    return fd
def listening():
    listener = socket.create_server(("127.0.0.1", 0), backlog=1024)
    print(listener.getsockname()[1], flush=True)
    return listener
def synced(fd, data, at):
    os.pwrite(fd, data, at)
    os.fdatasync(fd)
    return (at + len(data)) % (1 << 25)
"""
_OTHER = (
    _FILE
    + """
fd, at = opened(sys.argv[1]), 0
head = listening().accept()[0]
head.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
while size := head.recv(4, socket.MSG_WAITALL):
    at = synced(fd, head.recv(int.from_bytes(size, "big"), socket.MSG_WAITALL), at)
    head.send(b"y")
"""
)
_HEAD = (
    _FILE
    + """
import select
fd, at = opened(sys.argv[1]), 0
others = [socket.create_connection(("127.0.0.1", int(port))) for port in sys.argv[3:]]
listener, clients = listening(), {}
for one in others:
    one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
epoll = select.epoll()
for _ in range(int(sys.argv[2])):
    client = listener.accept()[0]
    client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    clients[client.fileno()] = client
    epoll.register(client, select.EPOLLIN)
while True:
    came = [(number, clients[number].recv(4096)) for number, _ in epoll.poll()]
    if not all(data for _, data in came):
        break
    batch = b"".join([data for _, data in came])
    for one in others:
        one.sendall(len(batch).to_bytes(4, "big") + batch)
    at = synced(fd, batch, at)
    for one in others:
        one.recv(1, socket.MSG_WAITALL)
    for number, _ in came:
        clients[number].send(b"receipt.")
"""
)


class _Connection:
    """A connection of the load generator to the head. A bare message has no producer."""

    producer = epoch = sequence = 0

    def __init__(self, opened: socket.socket) -> None:
        self.fileno = opened.fileno


def load(directory: Path, connections: int, size: int, count: int, rate: float = 0.0) -> Load:
    """Measure the same with the load generator: `count` messages of `size` bytes, one in flight on each connection.

    Args:
        directory: for the files of the three processes.
        connections: number of connections; at least 100 in a paced run, so that a late answer delays no later message.
        size: bytes of a message, at most 4,096, because the head treats the bytes of one read as one message.
        count: number of messages.
        rate: messages a second over all connections; 0: each answer sends the next message.
    """
    connections = max(connections, _PACED_CONNECTIONS_MIN) if rate else connections
    with _head(directory, connections) as port, contextlib.ExitStack() as opened:
        made = []
        for _ in range(connections):
            client = opened.enter_context(socket.create_connection(("127.0.0.1", port), WAIT_S))
            client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            made.append(_Connection(client))
        return run(made, Message(bytes(size), answer_bytes=len(_ANSWER)), count, rate=rate)


def rate(directory: Path, connections: int, size: int, count: int) -> float:
    """Messages of `size` bytes a second, `count` in all, one under way on each connection, each synced by three processes."""
    with _head(directory, connections) as port, contextlib.ExitStack() as opened:
        clients = {}
        for _ in range(connections):
            client = opened.enter_context(socket.create_connection(("127.0.0.1", port), WAIT_S))
            client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            clients[client.fileno()] = client
        epoll = opened.enter_context(select.epoll())
        message, sent, done = bytes(size), 0, 0
        begin = time.perf_counter()
        for client in clients.values():
            epoll.register(client, select.EPOLLIN)
            client.sendall(message)
            sent += 1
        while done < sent:
            ready = epoll.poll(WAIT_S)
            if not ready:
                raise SystemExit(f"bare sockets said nothing for {WAIT_S:g} s")
            for number, _ in ready:
                if not clients[number].recv(4096):
                    raise SystemExit("the process behind bare sockets ended")
                done += 1
                if sent < count:
                    clients[number].sendall(message)
                    sent += 1
        return done / (time.perf_counter() - begin)


@contextlib.contextmanager
def _head(directory: Path, connections: int) -> Iterator[int]:
    """Such a group, each member with a file of written zeros; the port of its head."""
    own = Path(mkdtemp(prefix="connections-", dir=directory))
    processes: list[subprocess.Popen[str]] = []

    def started(code: str, name: str, *arguments: object) -> str:
        command: Sequence[str] = [sys.executable, "-c", code, str(own / name), *map(str, arguments)]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        processes.append(process)
        assert process.stdout is not None
        port = process.stdout.readline().strip()
        if not port:
            raise SystemExit("a process of bare sockets did not start; what it said stands above")
        return port

    try:
        others = [started(_OTHER, name) for name in ("second", "third")]
        yield int(started(_HEAD, "head", connections, *others))
    finally:
        for process in processes:
            process.kill()
            process.communicate()
        shutil.rmtree(own, ignore_errors=True)
