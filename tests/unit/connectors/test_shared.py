"""Tests of the code that all connectors share: quarantine, configuration checks, and the worker command."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import threading
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from tutti import limits as common
from tutti.errors import ConfigError
from tutti.runtime.metrics_server import MetricsEndpoint, _Protocol
from tutti.runtime.worker_command import run
from tutti_connect import limits
from tutti_connect.config import check_connector_name, check_gateways, check_topic
from tutti_connect.kafka.config import load_source_config
from tutti_connect.quarantine import Quarantine, QuarantineFull, QuarantineLog, as_base64


def test_quarantine_keeps_each_once(tmp_path: Path) -> None:
    """Proves that a second time changes nothing, and that another source of the name, or another position, has its own file."""
    quarantine = Quarantine(str(tmp_path / "q"))
    assert quarantine.put("a/b-4", ["id"], "wrong", {"value_base64": as_base64(b"\xff"), "key_base64": as_base64(None)})
    assert not quarantine.put("a/b-4", ["id"], "wrong in other words", {})
    assert quarantine.put("a/b-4", ["another"], "wrong", {})
    assert quarantine.put("a_b-4", ["id"], "wrong", {})
    assert quarantine.put("t" * 300 + "1", ["id"], "wrong", {})
    assert quarantine.put("t" * 300 + "2", ["id"], "wrong", {})
    files = list((tmp_path / "q").iterdir())
    assert len(files) == quarantine.count == Quarantine(str(tmp_path / "q")).count == 5
    told = [json.loads(file.read_text()) for file in files]
    assert {"reason": "wrong", "value_base64": "/w==", "key_base64": None} in told


def test_quarantine_is_bounded_and_detects_freed_space(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    quarantine = Quarantine(str(tmp_path))
    monkeypatch.setattr(limits, "QUARANTINED_MAX", 2)
    for number in range(2):
        quarantine.put(f"t-{number}", [], "wrong", {})
    with pytest.raises(QuarantineFull, match=r"t-5: 2 records .* move the files away"):
        quarantine.put("t-5", [], "wrong", {})
    next(tmp_path.iterdir()).unlink()
    quarantine.put("t-5", [], "wrong", {})
    assert quarantine.count == 2
    monkeypatch.setattr(limits, "QUARANTINED_MAX", 10)
    monkeypatch.setattr(limits, "QUARANTINED_BYTES_MAX", 100)
    quarantine.put("t-6", [], "wrong", {"value": "x" * 100})
    for one in (quarantine, Quarantine(str(tmp_path))):
        with pytest.raises(QuarantineFull, match=r"t-7: 3 records \(\d+ bytes\)"):
            one.put("t-7", [], "wrong", {})


def test_an_unwritable_quarantine_is_reported_at_the_start(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match="choose a writable directory"):
        Quarantine(str(tmp_path / "file"))
    with pytest.raises(ConfigError, match="choose a writable directory"):
        QuarantineLog(str(tmp_path / "file"), "a")


def messages_of(directory: Path) -> list[int]:
    """Return the complete messages in quarantine."""
    lines = [line for file in sorted(directory.glob("*.jsonl")) for line in file.read_bytes().splitlines()]
    return [json.loads(line)["number"] for line in lines if line.endswith(b"}")]


def test_a_log_of_messages_has_few_files_across_starts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Proves that a start continues the newest file, that a line cut by a crash spoils no other, and that what is moved away makes
    space for more.
    """
    monkeypatch.setattr(limits, "QUARANTINE_LOG_FILES", 3)
    monkeypatch.setattr(limits, "QUARANTINE_LOG_FILE_BYTES", 250)
    now = 0.0
    for number in range(4):  # about 75 bytes each
        QuarantineLog(str(tmp_path), "a", lambda: now).append([("wrong", {"number": number})])
    (tmp_path / "a-b-20260101T000000.000000Z.jsonl").touch()  # another connector's
    assert len(list(tmp_path.glob("a-2*"))) == 1
    with next(tmp_path.glob("a-2*")).open("ab") as file:
        file.write(b'{"reason":"cut')
    log = QuarantineLog(str(tmp_path), "a", lambda: now)
    log.append([("wrong", {"number": number}) for number in range(4, 20)])
    kept = messages_of(tmp_path)
    assert kept == list(range(len(kept)))
    assert (len(list(tmp_path.glob("a-2*"))), log.count, log.dropped) == (3, len(kept), 20 - len(kept))
    for path in sorted(tmp_path.glob("a-2*"))[:2]:
        path.unlink()
    before = log.dropped
    log.append([("wrong", {"number": 20})])
    assert log.dropped == before + 1, "a full directory is not listed for each message"
    now += limits.QUARANTINE_LOG_CHECK_S
    log.append([("wrong", {"number": 21})])
    assert (messages_of(tmp_path)[-1], log.dropped) == (21, before + 1)
    for path in tmp_path.glob("a-2*"):
        path.unlink()  # the open one, too
    log.append([("wrong", {"number": 22})])
    assert (messages_of(tmp_path), log.count) == ([22], 1)


def test_a_full_disk_for_log_lines_is_counted_and_leaves_no_partial_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    now = 0.0
    log = QuarantineLog(str(tmp_path), "a", lambda: now)
    log.append([("wrong", {"number": 0})])

    def full(_fd: int) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        log.append([("wrong", {"number": 1}), ("wrong", {"number": 2})])
    now += limits.QUARANTINE_LOG_REPORT_S
    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        log.append([("wrong", {"number": 3})])
    now += limits.QUARANTINE_LOG_CHECK_S
    log.append([("wrong", {"number": 4})])
    assert (messages_of(tmp_path), log.count, log.dropped) == ([0, 4], 2, 3)
    first, second = (record.getMessage() for record in caplog.records)
    assert "since the last report: 1, see" in first
    assert "since the last report: 3, see" in second
    assert "3 were dropped so far (No space left on device: free some space there)" in second


@pytest.mark.parametrize(
    ("check", "told"),
    [
        (lambda: check_connector_name("f.toml", "a b"), "f.toml: name is 'a b'"),
        (lambda: check_connector_name("f.toml", "a" * 101), "1 to 100 letters"),
        (lambda: check_topic("f.toml", "topic", ""), "f.toml: topic is ''"),
        (lambda: check_gateways("f.toml", "localhost"), "f.toml: gateways:"),
    ],
)
def test_mistakes_name_the_file(check: Callable[[], None], told: str) -> None:
    with pytest.raises(ConfigError) as raised:
        check()
    assert told in str(raised.value)


class Lag(Collector):
    def collect(self) -> Iterator[Metric]:
        family = GaugeMetricFamily("tutti_try_lag", "Behind.", labels=["connector"])
        family.add_metric(["a"], 7)
        yield family


class Waiting:
    """Is ready at once, reads its own metrics, and waits for a stop request."""

    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        self._capsys = capsys
        self.metrics = ""

    def run(self, stop: threading.Event, ready: Callable[[], None]) -> None:
        assert self._capsys.readouterr().out == "", "nothing is said before it is ready"
        ready()
        line = json.loads(self._capsys.readouterr().out)
        assert (line["ready"], line["name"]) == (True, "a")
        with urllib.request.urlopen(line["metrics"], timeout=10) as answer:  # noqa: S310 - its own endpoint
            self.metrics = answer.read().decode()
        os.kill(os.getpid(), signal.SIGTERM)
        assert stop.wait(10)


@pytest.fixture
def signals() -> Iterator[None]:
    """Leaves what signals do as it was."""
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.usefixtures("signals")
def test_a_connector_runs_until_a_stop_request(capsys: pytest.CaptureFixture[str]) -> None:
    connector = Waiting(capsys)
    assert run(connector, {"name": "a"}, "127.0.0.1:0", Lag()) == 0
    assert 'tutti_try_lag{connector="a"} 7.0' in connector.metrics


@pytest.mark.usefixtures("signals")
@pytest.mark.parametrize(
    ("listen", "told"),
    [
        ("9464", "metrics: '9464' has no host or no port: write HOST:PORT"),
        ("127.0.0.1:²", "is not a port"),
        ("]x[:1", "is not a host"),
        ("192.0.2.1:1", "other hosts can reach"),
    ],
)
def test_an_impossible_metrics_address_is_reported(capsys: pytest.CaptureFixture[str], listen: str, told: str) -> None:
    with pytest.raises(ConfigError, match=f"^orders.toml: .*{told}"):
        run(Waiting(capsys), {}, listen, Lag(), file="orders.toml")


def test_an_endpoint_for_other_hosts_follows_its_configuration() -> None:
    with pytest.raises(ConfigError, match="cannot listen on"):
        MetricsEndpoint("192.0.2.1:1", Lag(), insecure=True)
    with MetricsEndpoint("0.0.0.0:0", Lag(), insecure=True) as url, urllib.request.urlopen(url, timeout=10) as answer:  # noqa: S310 - its own
        assert b"tutti_try_lag" in answer.read()


def test_quarantined_records_are_durable_before_their_source_may_advance(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Proves that the file is synced before it has its name, and its name before `put` returns."""
    steps: list[tuple[str, str]] = []
    sync, rename = os.fsync, Path.rename

    def synced(fd: int) -> None:
        sync(fd)
        steps.append(("sync", os.readlink(f"/proc/self/fd/{fd}")))

    def renamed(path: Path, target: Path) -> Path:
        steps.append(("name", str(target)))
        return rename(path, target)

    monkeypatch.setattr(os, "fsync", synced)
    monkeypatch.setattr(Path, "rename", renamed)
    assert Quarantine(str(tmp_path)).put("t-0-1", ["id"], "why", {"value": 1})
    (file,) = tmp_path.iterdir()
    assert steps == [("sync", str(file.with_suffix(".part"))), ("name", str(file)), ("sync", str(tmp_path))]


def test_strangers_that_say_nothing_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Proves that idle connections to the endpoint use one thread, and that each is closed: beyond the limit at once,
    otherwise after its time.
    """
    monkeypatch.setattr(common, "METRICS_CONNECTIONS_MAX", 3)
    monkeypatch.setattr(common, "METRICS_US_MAX", 1_000_000)
    with MetricsEndpoint("127.0.0.1:0", Lag(), insecure=False) as url, contextlib.ExitStack() as stack:
        address = ("127.0.0.1", int(url.rpartition(":")[2].partition("/")[0]))
        threads = threading.active_count()
        idle = [stack.enter_context(socket.create_connection(address, timeout=30)) for _ in range(12)]
        for one in idle:
            with contextlib.suppress(ConnectionError):  # it is cut: those beyond the bound at once
                assert one.recv(1) == b""
        assert threading.active_count() == threads
        with urllib.request.urlopen(url, timeout=10) as answer:  # noqa: S310 - its own endpoint
            assert b"tutti_try_lag" in answer.read()


def test_a_scrape_gets_in_while_strangers_hold_all_connections(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(common, "METRICS_CONNECTIONS_MAX", 2)
    monkeypatch.setattr(common, "METRICS_US_MAX", 60_000_000)
    monkeypatch.setattr(_Protocol, "rejected", Counter[str]())
    with MetricsEndpoint("127.0.0.1:0", Lag(), insecure=False) as url, contextlib.ExitStack() as stack:
        address = ("127.0.0.1", int(url.rpartition(":")[2].partition("/")[0]))
        for _ in range(5):
            stack.enter_context(socket.create_connection(address, timeout=30))
        with urllib.request.urlopen(url, timeout=30) as answer:  # noqa: S310 - its own endpoint
            told = answer.read().decode()
    assert "tutti_try_lag" in told
    assert 'tutti_page_turned_away_total{why="crowded"} 4.0' in told


def test_a_scrape_that_closes_its_side_gets_its_answer() -> None:
    with MetricsEndpoint("127.0.0.1:0", Lag(), insecure=False) as url:
        address = ("127.0.0.1", int(url.rpartition(":")[2].partition("/")[0]))
        with socket.create_connection(address, timeout=30) as link:
            link.sendall(b"GET /metrics HTTP/1.1\r\nhost: x\r\n\r\n")
            link.shutdown(socket.SHUT_WR)
            answer = b""
            while part := link.recv(65_536):
                answer += part
        assert b"tutti_try_lag" in answer


@pytest.mark.parametrize(
    ("request_", "status"),
    [
        (b"GET /metrics HTTP/1.1\nhost: x\n\n", b"400"),
        (b"GET /metrics HTTP/1.1\r\nhost: x\r\na: b\r\n c\r\n\r\n", b"400"),
        (b"GET /metrics HTTP/9.9\r\nhost: x\r\n\r\n", b"505"),
    ],
)
def test_a_scrape_that_is_no_http_is_refused(request_: bytes, status: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_Protocol, "rejected", Counter[str]())
    with MetricsEndpoint("127.0.0.1:0", Lag(), insecure=False) as url:
        address = ("127.0.0.1", int(url.rpartition(":")[2].partition("/")[0]))
        with socket.create_connection(address, timeout=30) as link:
            link.sendall(request_)
            assert link.recv(100).split()[1] == status
        with urllib.request.urlopen(url, timeout=30) as answer:  # noqa: S310 - its own endpoint
            assert f'tutti_page_turned_away_total{{why="{status.decode()}"}} 1.0' in answer.read().decode()


def test_every_mistake_of_a_file_is_reported_missing_keys_after_misspelt_ones(tmp_path: Path) -> None:
    path = tmp_path / "in.toml"
    path.write_text('nmae = "in"\ngateways = "tutti://h:7400"\nquarantine = 5\n[kafka]\nserver = "x"\ntopics = ["t"]\n')
    with pytest.raises(ConfigError) as error:
        load_source_config(str(path))
    told = [line.removeprefix(f"{path}:").partition(": ")[0].strip() for line in str(error.value).splitlines()]
    assert told == ["1", "3", "4", "5", "name is missing"]
    path.write_text("".join(f"unknown{number} = 1\n" for number in range(20)))
    with pytest.raises(ConfigError, match="and 15 more in the file"):
        load_source_config(str(path))
