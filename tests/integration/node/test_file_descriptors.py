"""Tests of connections that exhaust a gateway's file descriptors: the gateway and its log continue, and more connections are
refused.
"""

from __future__ import annotations

import contextlib
import os
import resource
import socket
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.faults.fuzz import zmtp
from tests.support.gateway_process import GatewayProcess
from tutti import Producer
from tutti.log.files.layout import LOG
from tutti_gateway.transport.keys import generate

MORE = 64  # descriptors than it needs
STRANGERS = 300
SEGMENT_BYTES = 32 << 20
UNANSWERED_S = 0.5  # then it is another one's turn
PAUSE_S = 0.3  # so that they come again and again while the log goes on


class Crowd:
    """Strangers that connect to a port again and again; they greet as ZeroMQ does and say nothing more, or nothing at all."""

    def __init__(self, port: int, greets: bool = True) -> None:
        self._port = port
        self._greets = greets
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def _run(self) -> None:
        there: list[socket.socket] = []
        born: dict[socket.socket, float] = {}
        while not self._stop.wait(0.02):
            there = [one for one in there if self._stands(one, time.monotonic() - born.get(one, 0.0) > UNANSWERED_S)]
            born = {one: at for one, at in born.items() if one in there}
            for _ in range(STRANGERS - len(there)):
                one = socket.socket()
                one.setblocking(False)
                with contextlib.suppress(OSError):
                    one.connect(("127.0.0.1", self._port))
                there.append(one)
                born[one] = time.monotonic()
        for one in there:
            one.close()

    def _stands(self, one: socket.socket, old: bool) -> bool:
        """Return whether a connection stays. Under a burst the system drops connections that exceed the backlog, and retries them
        ever later.
        """
        try:
            if old:
                one.getpeername()  # an OSError where it is not connected
            if one.recv(100):
                if self._greets:
                    one.send(zmtp.GREETING + zmtp.ready())
                return True
        except BlockingIOError:
            return True
        except OSError:
            pass
        one.close()
        return False

    def __enter__(self) -> Crowd:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()


def told(gateway: GatewayProcess, what: str) -> None:
    comes(lambda: what in gateway.log_tail(10_000_000), f"it does not tell: {what}")


def comes(condition: Callable[[], bool], else_: str) -> None:
    deadline = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline, else_
        time.sleep(0.05)


def segments(gateway: GatewayProcess) -> list[int]:
    """The first offset of each."""
    return [int(name[:20]) for name in os.listdir(gateway.data / LOG) if name.endswith(".seg")]


def keys(directory: Path) -> str:
    """Return the configuration of the keys."""
    generate(directory, ["g1"])
    return f'[security]\nsecret_key = "{directory}/g1.secret"\npublic_keys = "{directory}/group.keys"\n'


@pytest.mark.parametrize(
    "port", ["clients", pytest.param("group", marks=pytest.mark.soak), pytest.param("group with keys", marks=pytest.mark.soak)]
)
def test_a_crowd_of_connections_stops_neither_the_gateway_nor_its_log(tmp_path: Path, port: str) -> None:
    with_keys = port == "group with keys"
    extra = f"[log]\nsegment_bytes = {SEGMENT_BYTES}\nprepared_segments = 0\n[retention]\nbytes = {2 * SEGMENT_BYTES}\n"
    extra += keys(tmp_path / "keys") if with_keys else ""
    with GatewayProcess(tmp_path, extra=extra) as gateway, Producer(gateway.url, producer="p") as producer:
        assert producer.send("t", b"first").result(10) == 0
        files = len(os.listdir(f"/proc/{gateway.pid}/fd")) + MORE
        resource.prlimit(gateway.pid, resource.RLIMIT_NOFILE, (files, files))
        time.sleep(2)  # a gateway looks at its limit once a second: nobody else lowers it while one runs
        # With keys a stranger that greets without one is refused at once: those that say nothing are the worst.
        with Crowd(gateway.port + (port != "clients"), greets=not with_keys):
            for batch in range(20):
                receipts = [producer.send("t", os.urandom(1_000_000)) for _ in range(8)]
                assert [receipt.result(60) for receipt in receipts] == list(range(8 * batch + 1, 8 * batch + 9))
                time.sleep(PAUSE_S)
            told(gateway, "or is refused; raise the limit of open files")
        assert max(segments(gateway)) > 100, "the log went on into further segments"
        comes(lambda: min(segments(gateway)) > 1, "the log is not trimmed")
        with Producer(gateway.url, producer="q", connect_timeout=30) as later:
            assert later.send("t", b"later").result(30) == 161
        told(gateway, "descriptors are free again")
        assert "Too many open files" not in gateway.log_tail(10_000_000)


@pytest.fixture(autouse=True)
def _files_of_this_process() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, min(hard, 4096)), hard))
