"""Fixtures of this folder: gateways for the tests of a worker, and sockets of applications that know nothing of Tutti."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import zmq

from tests.support.connector_process import WAIT_S
from tests.support.running_group import RunningGroup

Socket = zmq.Socket[bytes]


@pytest.fixture(scope="session")
def group(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningGroup]:
    """Three gateways."""
    with RunningGroup(tmp_path_factory.mktemp("session-group")) as group:
        yield group


@pytest.fixture
def peer() -> Iterator[Callable[[int], Socket]]:
    """Makes sockets, which are closed at the end; a wait that is over is an error."""
    context: zmq.Context[Socket] = zmq.Context()
    made: list[Socket] = []

    def make(kind: int) -> Any:
        socket = context.socket(kind)
        socket.set(zmq.SNDTIMEO, int(WAIT_S * 1000))
        socket.set(zmq.RCVTIMEO, int(WAIT_S * 1000))
        made.append(socket)
        return socket

    yield make
    for socket in made:
        socket.close(0)
    context.term()
