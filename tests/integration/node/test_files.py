"""Proves that connections that use up a gateway's file descriptors stop neither it nor its log: further ones are refused."""

from __future__ import annotations

import contextlib
import errno
import os
import resource
import socket
import threading
import time
from pathlib import Path

import pytest

from gateway.log.layout import LOG
from gateway.node.files import SpareFiles
from gateway.node.port import ClientPort
from tests.faults.fuzz import zmtp
from tests.faults.gateways import GatewayProcess
from tests.unit.node.fakes import LOG as LOGGER
from tutti import Producer

MORE = 64  # descriptors than it needs
STRANGERS = 300
SEGMENT_BYTES = 32 << 20


class Crowd:
    """Strangers that connect to a port again and again, greet as ZeroMQ does, and say nothing."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def _run(self) -> None:
        there: list[socket.socket] = []
        while not self._stop.wait(0.02):
            there = [one for one in there if _stands(one)]
            for _ in range(STRANGERS - len(there)):
                one = socket.socket()
                one.setblocking(False)
                with contextlib.suppress(OSError):
                    one.connect(("127.0.0.1", self._port))
                there.append(one)
        for one in there:
            one.close()

    def __enter__(self) -> Crowd:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()


def _stands(one: socket.socket) -> bool:
    try:
        if one.recv(100):
            one.send(zmtp.GREETING + zmtp.ready())
            return True
    except BlockingIOError:
        return True
    except OSError:
        pass
    one.close()
    return False


def told(gateway: GatewayProcess, what: str) -> None:
    began = time.monotonic()
    while what not in gateway.log_tail(30_000):
        assert time.monotonic() - began < 30, f"it does not tell: {what}"
        time.sleep(0.05)


@pytest.mark.parametrize("port", [0, 1], ids=["clients", "group"])
def test_a_crowd_of_connections_stops_neither_the_gateway_nor_its_log(tmp_path: Path, port: int) -> None:
    extra = f"[log]\nsegment_bytes = {SEGMENT_BYTES}\nprepared_segments = 0\n[retention]\nbytes = {2 * SEGMENT_BYTES}\n"
    with GatewayProcess(tmp_path, extra=extra) as gateway, Producer(gateway.url, producer="p") as producer:
        assert producer.send("t", b"first").result(10) == 0
        files = len(os.listdir(f"/proc/{gateway.pid}/fd")) + MORE
        resource.prlimit(gateway.pid, resource.RLIMIT_NOFILE, (files, files))
        time.sleep(2)  # a gateway looks at its limit once a second: nobody else lowers it while one runs
        with Crowd(gateway.port + port):
            for batch in range(20):
                receipts = [producer.send("t", os.urandom(1_000_000)) for _ in range(8)]
                assert [receipt.result(60) for receipt in receipts] == list(range(8 * batch + 1, 8 * batch + 9))
            told(gateway, "new connections are refused; raise the limit of open files")
        firsts = [int(name[:20]) for name in os.listdir(gateway.data / LOG) if name.endswith(".seg")]
        assert min(firsts) > 1, "the log went on into further segments, and was trimmed"
        with Producer(gateway.url, producer="q", connect_timeout=30) as later:
            assert later.send("t", b"later").result(30) == 161
        told(gateway, "descriptors are free again")
        assert "Too many open files" not in gateway.log_tail(30_000)


def test_a_port_that_refuses_does_so_when_its_connections_are_closed_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else it would take the next crowd before descriptors are set aside for the log again."""
    port = ClientPort("127.0.0.1", 0)
    with contextlib.closing(port):
        spare = SpareFiles(port, LOGGER, 8)
        with monkeypatch.context() as full:
            full.setattr(os, "dup", _none_left)
            spare.look()
            assert _refuses(port)
            spare.look()  # lets the spare ones go
        port.reopen()
        assert _refuses(port)
        held = len(os.listdir("/proc/self/fd"))
        spare.look()
        assert not _refuses(port)
        assert len(os.listdir("/proc/self/fd")) >= held + 8
        spare.close()


def _refuses(port: ClientPort) -> bool:
    return not port.listening


def _none_left(_descriptor: int) -> int:
    raise OSError(errno.EMFILE, "none left")


@pytest.fixture(autouse=True)
def _files_of_this_process() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, min(hard, 4096)), hard))
