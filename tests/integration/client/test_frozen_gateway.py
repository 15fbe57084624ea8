"""Tests of clients whose only gateway is frozen (SIGSTOP), with and without its reads process. Producers, readers, followers and
commands end at their timeouts, name the gateway and the remedy, and continue when it does.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import threading
from collections.abc import Callable, Iterator

import pytest

from tests.support.commands import tutti
from tests.support.gateway_process import GatewayProcess
from tutti import Producer, Reader, Unavailable, Unknown
from tutti.io import endpoints
from tutti.io.admin import AdminClient

END_S = 60.0  # in which whatever is asked here has ended, however slow the machine is; nothing was to wait for so long
IDS = ["the gateway", "its reads process too"]
PATIENCE_S = 5.0  # longer than one address has, and a look who is there takes


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatewayProcess]:
    with GatewayProcess(tmp_path_factory.mktemp("gateway")) as process:
        with Producer(process.url) as producer:
            producer.send("t", b"0")
        yield process


@pytest.fixture(params=[False, True], ids=IDS)
def freeze(gateway: GatewayProcess, request: pytest.FixtureRequest) -> Callable[[], contextlib.AbstractContextManager[None]]:
    @contextlib.contextmanager
    def frozen() -> Iterator[None]:
        with AdminClient(gateway.url) as control:
            reads_pid = control.status()["reads_process"]["pid"]
        pids = [gateway.pid, reads_pid] if request.param else [gateway.pid]
        for pid in pids:
            os.kill(pid, signal.SIGSTOP)
        try:
            yield
        finally:
            for pid in pids:
                os.kill(pid, signal.SIGCONT)

    return frozen


class Asked(threading.Thread):
    """Runs a call in a thread of its own, so that the test ends although the call does not."""

    def __init__(self, question: Callable[[], object]) -> None:
        super().__init__(daemon=True)
        self._question = question
        self._error: BaseException | None = None
        self.start()

    def run(self) -> None:
        try:
            self._question()
        except BaseException as error:  # noqa: BLE001 - told to who waits
            self._error = error

    def error(self) -> BaseException | None:
        self.join(END_S)
        assert not self.is_alive(), "it hangs"
        return self._error


def says(gateway: GatewayProcess, text: str) -> bool:
    """Whether it names the gateway, and what to do about it."""
    address = gateway.url.removeprefix("tutti://")
    return re.search(rf"{re.escape(address)}: .*{re.escape(endpoints.SILENT_ADVICE)}", text) is not None


def test_every_call_to_a_frozen_gateway_ends_in_time_and_works_afterwards(
    gateway: GatewayProcess, freeze: Callable[[], contextlib.AbstractContextManager[None]]
) -> None:
    def until_it_raises() -> None:
        while True:
            polled.poll(0.3)

    with (
        Producer(gateway.url, delivery_timeout=2 * PATIENCE_S) as producer,
        Reader(gateway.url, start="latest", follow=True, columns=["value"], patience=PATIENCE_S) as following,
        Reader(gateway.url, start="latest", follow=True, columns=["value"], patience=PATIENCE_S) as polled,
        Reader(gateway.url, start="latest", follow=True, ordering="unordered", patience=PATIENCE_S) as unordered,
        Reader(gateway.url, name="loader", patience=PATIENCE_S) as named,
    ):
        assert producer.send("t", b"before").result(END_S) >= 0
        for reader in (following, polled):
            batch = reader.poll(END_S)
            assert batch is not None
            assert batch.column("value").to_pylist() == [b"before"]
        assert next(named).num_rows
        with freeze():
            unavailable = {
                "a new producer": Asked(lambda: Producer(gateway.url, connect_timeout=2 * PATIENCE_S)),
                "who follows": Asked(lambda: next(following)),
                "who polls": Asked(until_it_raises),
                "who follows lanes": Asked(lambda: next(unordered)),
                "a saved position": Asked(named.save),
            }
            receipt = producer.send("t", b"while it was frozen")
            sent = Asked(receipt.result)
            for what, asked in unavailable.items():
                error = asked.error()
                assert isinstance(error, Unavailable), (what, error)
                assert says(gateway, str(error)), (what, error)
            error = sent.error()
            assert isinstance(error, Unknown), error
            assert says(gateway, str(error)), error
            assert producer.flush(END_S) == 0
        producer.resume(END_S)
        assert producer.send("t", b"after").result(END_S) >= 0
        for reader in (following, polled):
            found: list[bytes | None] = []
            while b"after" not in found:
                batch = next(reader)
                found += batch.column("value").to_pylist()
            assert found in ([b"after"], [b"while it was frozen", b"after"]), "it goes on where it was"


@pytest.mark.parametrize("freeze", [False, pytest.param(True, marks=pytest.mark.soak)], indirect=True, ids=IDS)
@pytest.mark.parametrize("options", [(), pytest.param(("--unordered",), marks=pytest.mark.soak)])
def test_tail_follow_ends_and_reports_it(
    gateway: GatewayProcess,
    freeze: Callable[[], contextlib.AbstractContextManager[None]],
    options: tuple[str, ...],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(Reader.__init__.__kwdefaults__ or {}, "patience", PATIENCE_S)
    began = threading.Event()
    opened = Reader.poll

    def poll(reader: Reader, timeout: float = 0.0) -> object:
        batch = opened(reader, timeout)
        began.set()
        return batch

    monkeypatch.setattr(Reader, "poll", poll)
    with contextlib.ExitStack() as stack:

        def stop() -> None:
            began.wait(END_S)
            stack.enter_context(freeze())

        stopping = Asked(stop)
        done = tutti("tail", "--follow", "--start", "latest", *options, url=gateway.url)
        assert stopping.error() is None
    assert (done.code, done.out) == (3, "")
    assert says(gateway, done.err), done.err
