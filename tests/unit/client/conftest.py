"""Fixtures of the client tests: a fake gateway, a controlled name server, and a spool directory."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.unit.client.fake_gateway import FakeGateway


@pytest.fixture(autouse=True)
def _no_name_server_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fail lookups of `.invalid` (RFC 2606) at once: the name server of this machine may be slow."""
    real: Callable[..., object] = socket.getaddrinfo

    def look(host: str, *args: object, **kwargs: object) -> object:
        if str(host).endswith(".invalid"):
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        return real(host, *args, **kwargs)

    monkeypatch.setattr(socket, "getaddrinfo", look)


@pytest.fixture
def slow(monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    """A name server that says where `slow.example` is, once that is set."""
    answers = threading.Event()
    real: Callable[..., object] = socket.getaddrinfo

    def look(host: str, *args: object, **kwargs: object) -> object:
        if host == "slow.example":
            assert answers.wait(60)
            host = "127.0.0.1"
        return real(host, *args, **kwargs)

    monkeypatch.setattr(socket, "getaddrinfo", look)
    yield answers
    answers.set()


@pytest.fixture
def gateway() -> Iterator[FakeGateway]:
    """A gateway that keeps the rules."""
    with FakeGateway() as fake:
        yield fake


@pytest.fixture
def spool(tmp_path: Path) -> Path:
    """The path of a producer's spool."""
    return tmp_path / "spool"
