"""Tests of the lines that a client logs in an outage: gateways are absent, killed, stopped, and started again."""

from __future__ import annotations

import contextlib
import logging
import re
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.gateway_process import GatewayProcess
from tests.support.running_group import RunningGroup
from tests.support.waiting import wait_until
from tutti.producer import Producer
from tutti.reader import Reader

WAIT_S = 60.0


@pytest.fixture(scope="module")
def three(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningGroup]:
    with RunningGroup(tmp_path_factory.mktemp("three")) as three:
        yield three


class Lines:
    """The lines of one logger, with the addresses of the gateways replaced by their names."""

    def __init__(self, caplog: pytest.LogCaptureFixture, child: str, gateways: dict[str, GatewayProcess]) -> None:
        caplog.set_level(logging.DEBUG, "tutti.client")
        self._caplog = caplog
        self._logger = f"tutti.client.{child}"
        self._names = {f"127.0.0.1:{gateway.port}": name for name, gateway in gateways.items()}

    def __call__(self) -> list[str]:
        found = [f"{one.levelname} {one.getMessage()}" for one in self._caplog.records if one.name == self._logger]
        for address, name in self._names.items():
            found = [line.replace(address, name) for line in found]
        return found

    def wait(self, pattern: str) -> str:
        """Wait for a line, and return it."""
        return wait_until(
            lambda: next((line for line in self() if re.search(pattern, line)), ""), lambda: f"no {pattern!r} in {self()}"
        )

    def clear(self) -> None:
        self._caplog.clear()


def steps(lines: list[str], *patterns: str) -> None:
    """Assert that the lines match the patterns one by one, without a line in between. Reminders may come at any time."""
    told = [line for line in lines if "still waiting" not in line]
    assert len(told) == len(patterns), told
    for line, pattern in zip(told, patterns, strict=True):
        assert re.search(pattern, line), told


def restart(three: RunningGroup) -> None:
    """Start the gateways that are down, and wait until all are in the view."""
    down = [gateway for gateway in three.all.values() if not gateway.runs]
    for gateway in down:
        gateway.start(wait=False)  # without a majority, a gateway is ready only when others run
    for gateway in down:
        gateway.wait_ready()
    wait_until(lambda: all(len(three.status(name)["view"]["members"]) == 3 for name in three.all), "not all are members")


def test_an_outage_from_the_start(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Proves that a producer and a reader that find no gateway say so at once, and again after 5 s."""
    gateway = GatewayProcess(tmp_path)
    producer, reader = Lines(caplog, "producer", {"g1": gateway}), Lines(caplog, "reader", {"g1": gateway})
    opened = threading.Event()

    def read() -> None:
        with Reader(gateway.url, name="loader", follow=True, connect_timeout=WAIT_S):
            opened.set()

    thread = threading.Thread(target=read)
    with contextlib.ExitStack() as gateways, Producer(gateway.url, producer="p", spool=tmp_path / "spool") as p:
        thread.start()
        p.send("t", b"1")
        producer.wait("still waiting after 5.* s; 1 record waiting; g1: connection refused")
        reader.wait("still waiting after 5.* s; g1: connection refused")
        gateways.enter_context(gateway)
        assert p.flush(WAIT_S) == 0
        thread.join(WAIT_S)
        assert opened.is_set()
    steps(
        producer(),
        "^WARNING producer 'p': no gateway is reachable: g1: connection refused$",
        "^INFO producer 'p': recovered after .* s: connected to gateway g1 at g1; 1 record waited$",
    )
    steps(
        reader(),
        "^WARNING reader 'loader': no gateway is reachable: g1: connection refused$",
        "^INFO reader 'loader': recovered after .* s: connected to gateway at g1$",
    )


def test_a_killed_gateway(three: RunningGroup, caplog: pytest.LogCaptureFixture) -> None:
    restart(three)
    lines = Lines(caplog, "producer", three.all)
    with Producer(three["g1"].url, producer="p") as p:
        p.send("t", b"1").result(WAIT_S)
        lines.wait("connected to")
        three["g1"].kill()
        lines.wait("lost")
        for _ in range(1000):
            p.send("t", b"2")
        assert p.flush(WAIT_S) == 0
        lines.wait("recovered")
    steps(
        lines(),
        "^INFO producer 'p': connected to gateway g1 at g1$",
        "^WARNING producer 'p': lost the connection to gateway g1 at g1: ",
        "^INFO producer 'p': recovered after .* s: connected to gateway (g2 at g2|g3 at g3)",
    )


def test_a_stopping_gateway_redirects_the_producer(three: RunningGroup, caplog: pytest.LogCaptureFixture) -> None:
    restart(three)
    lines = Lines(caplog, "producer", three.all)
    stopped = threading.Event()

    def stop() -> None:
        three["g1"].stop()
        stopped.set()

    with Producer(three["g1"].url, producer="p") as p:
        p.send("t", b"1").result(WAIT_S)
        lines.wait("connected to")
        thread = threading.Thread(target=stop)
        thread.start()
        while not stopped.is_set():  # a gateway refuses records while it leaves its group
            p.send("t", b"2").result(WAIT_S)
        thread.join()
        lines.wait("recovered")
    steps(
        lines(),
        "^INFO producer 'p': connected to gateway g1 at g1$",
        "^WARNING producer 'p': leaving gateway g1 at g1 for another gateway: .*leaving",
        "^INFO producer 'p': recovered after .* s: connected to gateway (g2 at g2|g3 at g3)",
    )


def test_a_minority_has_no_quorum(three: RunningGroup, caplog: pytest.LogCaptureFixture) -> None:
    """Proves the lines of a producer and of a reader whose group loses its majority, then its last gateway, and returns."""
    restart(three)
    producer, reader = Lines(caplog, "producer", three.all), Lines(caplog, "reader", three.all)
    with Producer(three.url, producer="p") as p, Reader(three["g1"].url, follow=True, start="latest") as r:
        p.send("t", b"1").result(WAIT_S)

        def read_until(text: str) -> None:
            while text not in " ".join(reader()):
                r.poll(0.3)

        for name in ("g2", "g3"):
            three[name].kill()
        receipts = [p.send("t", b"2") for _ in range(20)]
        producer.wait("no gateway has a quorum: ")
        producer.wait("still waiting after .* s; 20 records waiting; ")
        read_until("no gateway can confirm")
        three["g1"].kill()
        producer.wait("no gateway is reachable: ")
        read_until("no gateway is reachable")
        restart(three)
        receipts[-1].result(WAIT_S)
        producer.wait("recovered")
        read_until("with a majority again")
    assert re.search("WARNING producer 'p': no gateway has a quorum: .*g1: ", producer.wait("quorum"))
    assert producer()[-1].endswith("; 20 records waited")
    steps(
        [line for line in reader() if "lost the connection" not in line and "connected to" not in line],
        "^WARNING reader: no gateway can confirm its frontier with a majority: reading to offset ",
        "^WARNING reader: no gateway is reachable: ",
        "^INFO reader: gateway at g. confirms its frontier with a majority again$",
    )


def test_nothing_is_logged_for_each_record_or_batch(three: RunningGroup, caplog: pytest.LogCaptureFixture) -> None:
    restart(three)
    producer, reader = Lines(caplog, "producer", three.all), Lines(caplog, "reader", three.all)
    with Producer(three.url, producer="p", batch_bytes=4096) as p, Reader(three.url, follow=True, start="latest") as r:
        for number in range(20_000):
            p.send("t", b"%d" % number)
        assert p.flush(WAIT_S) == 0
        read = 0
        while read < 20_000:
            read += batch.num_rows if (batch := r.poll(WAIT_S)) is not None else 0
    steps(producer(), "^INFO producer 'p': connected to ")
    steps(reader(), "^INFO reader: connected to ")
