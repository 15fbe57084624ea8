"""Proves that connections that use up a gateway's file descriptors stop neither it nor its log: further ones are refused."""

from __future__ import annotations

import contextlib
import errno
import os
import resource
import socket
import time
from pathlib import Path

import pytest

from gateway.log.layout import LOG
from gateway.node.files import SpareFiles
from gateway.node.port import ClientPort
from tests.faults.gateways import GatewayProcess
from tests.unit.node.fakes import LOG as LOGGER
from tutti import Producer

FILES = 220
SEGMENT_BYTES = 32 << 20


def test_a_crowd_of_connections_stops_neither_the_gateway_nor_its_log(tmp_path: Path) -> None:
    extra = f"[log]\nsegment_bytes = {SEGMENT_BYTES}\nprepared_segments = 0\n"
    with contextlib.ExitStack() as opened:
        gateway = opened.enter_context(GatewayProcess(tmp_path, extra=extra))
        producer = opened.enter_context(Producer(gateway.url, producer="p"))
        assert producer.send("t", b"first").result(10) == 0
        resource.prlimit(gateway.pid, resource.RLIMIT_NOFILE, (FILES, FILES))
        crowd = [opened.enter_context(contextlib.closing(socket.socket())) for _ in range(2 * FILES)]
        began = time.monotonic()
        for one in crowd:
            one.setblocking(False)
            with contextlib.suppress(BlockingIOError, ConnectionRefusedError):
                one.connect(("127.0.0.1", gateway.port))
        receipts = [producer.send("t", b"x" * 1_000_000) for _ in range(80)]
        assert [receipt.result(60) for receipt in receipts] == list(range(1, 81))
        assert len(list((gateway.data / LOG).glob("0*.seg"))) > 2, "the log went on into further segments"
        while "new connections are refused" not in gateway.log_tail():
            assert time.monotonic() - began < 20
            time.sleep(0.05)
        for one in crowd:
            one.close()
        with Producer(gateway.url, producer="q", connect_timeout=30) as later:
            assert later.send("t", b"later").result(30) == 81
        assert "connections are taken" in gateway.log_tail()


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
