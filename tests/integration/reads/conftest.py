"""Fixtures of this folder: a log, a gateway's client port, and the reads process over them."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from pyarrow import flight

from tests.support.reads_process import FakeGateway, LogMaker, ReadsProcess


@pytest.fixture
def log(tmp_path: Path) -> Iterator[LogMaker]:
    log = LogMaker(tmp_path / "jfk")
    yield log
    log.close()


@pytest.fixture
def gateway() -> Iterator[FakeGateway]:
    gateway = FakeGateway()
    yield gateway
    gateway.close()


@pytest.fixture
def process(log: LogMaker, gateway: FakeGateway) -> Iterator[ReadsProcess]:
    process = ReadsProcess(log.path, gateway, log.read_fd).ready()
    yield process
    code = process.end()
    print("exit code", code, *process.lines)  # pytest shows it when the test failed


@pytest.fixture
def client(process: ReadsProcess) -> Iterator[flight.FlightClient]:
    with flight.connect(process.url) as client:
        yield client
