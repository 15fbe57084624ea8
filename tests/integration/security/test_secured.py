"""Tests of docs/how-to/security.md with a real gateway with keys, tokens and a certificate: which clients each port admits, their
rights, and that no secret is visible in traffic or files.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import socket
import ssl
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import flight

from tests.support.certificates import certificate
from tests.support.commands import Done, tutti
from tests.support.gateway_process import GatewayProcess
from tests.support.secured import SecuredFiles, recording_proxy
from tests.support.waiting import wait_until
from tutti import ConfigError, NotAllowed, Producer, Reader, TuttiError, Unavailable
from tutti.common.credentials import Credentials
from tutti.data.scan_request import ScanRequest
from tutti.io.admin import AdminClient
from tutti.security.tokens import Access, change_tokens
from tutti.sources.flight import FlightSource
from tutti.sources.query_progress import QueryProgress
from tutti.transactions import StagingProducer
from tutti_gateway.transport.keys import generate

SECRET_VALUE = b"a value that nobody else is to hear"


@pytest.fixture(scope="module")
def house(tmp_path_factory: pytest.TempPathFactory) -> SecuredFiles:
    return SecuredFiles(tmp_path_factory.mktemp("secured"))


@pytest.fixture(scope="module")
def gateway(house: SecuredFiles) -> Iterator[GatewayProcess]:
    with house.gateway() as process:
        with Producer(process.url, credentials=house.credentials("all")) as producer:
            producer.send("flights", b"one").result(10)
            producer.send("delays", b"two").result(10)
        yield process


def refused(error: pytest.ExceptionInfo[NotAllowed], house: SecuredFiles, code: str) -> None:
    """It says why, and no secret."""
    assert error.value.code == code
    assert not any(token in str(error.value) for token in house.tokens.values())


# The client port


@pytest.mark.parametrize("name", ["late", "unknown", "missing"])
def test_an_expired_or_unknown_token_opens_no_port(house: SecuredFiles, gateway: GatewayProcess, name: str) -> None:
    token = house.tokens.get(name, "tutti_nobody" if name == "unknown" else "")
    credentials = Credentials(token, house.place / "group.keys", house.place / "tls.pem")
    with pytest.raises(NotAllowed) as error:
        Producer(gateway.url, credentials=credentials)
    refused(error, house, "token")
    with pytest.raises(NotAllowed) as error:
        Reader(gateway.url, topics=["flights"], credentials=credentials)
    refused(error, house, "token")
    with pytest.raises(NotAllowed) as error, AdminClient(gateway.url, credentials=credentials) as control:
        control.status()
    refused(error, house, "token")


def test_a_client_without_credentials_gets_an_error_at_every_port(house: SecuredFiles, gateway: GatewayProcess) -> None:
    """As one of a release before them."""
    with pytest.raises(NotAllowed, match="accepts only clients that encrypt and show a token") as error:
        Producer(gateway.url)
    refused(error, house, "token")
    with pytest.raises(NotAllowed, match="TUTTI_TOKEN_FILE"), AdminClient(gateway.url) as control:
        control.status()


def test_each_may_write_what_is_listed_and_nothing_else(house: SecuredFiles, gateway: GatewayProcess) -> None:
    with Producer(gateway.url, credentials=house.credentials("feed")) as producer:
        assert producer.send("flights-raw", SECRET_VALUE).result(10) >= 0
        with pytest.raises(NotAllowed, match="may not write to topic 'delays'") as error:
            producer.send("delays", b"x").result(10)
        refused(error, house, "rights")
    with pytest.raises(NotAllowed, match="may write to no topic"):
        Producer(gateway.url, credentials=house.credentials("reader"))
    with pytest.raises(NotAllowed, match="may not write as producer 'lga-1'"):
        Producer(gateway.url, producer="lga-1", credentials=house.credentials("jfk"))
    with Producer(gateway.url, producer="jfk-1", credentials=house.credentials("jfk")) as producer:
        assert producer.send("delays", b"x").result(10) >= 0
        assert producer.send("delays", b"x", ordering="unordered").result(10) >= 0
    with Producer(gateway.url, credentials=house.credentials("feed")) as producer:
        receipt = producer.send("delays", b"x", ordering="unordered")
        with pytest.raises(NotAllowed, match="may not write to topic 'delays'"):
            receipt.result(10)


def test_the_generated_name_of_a_producer_gives_no_rights(
    house: SecuredFiles, gateway: GatewayProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Producer(gateway.url, credentials=house.credentials("feed")) as producer:
        producer.send("flights", b"x").result(10)
        with AdminClient(gateway.url, credentials=house.credentials("all")) as control:
            for shown in ((), (bytes(16),)):
                with pytest.raises(NotAllowed, match="needs a token with --admin"):
                    control.forget([producer.name], shown)
        monkeypatch.setattr("tutti.producer.nameless_name", lambda instance: producer.name)
        with pytest.raises(NotAllowed, match="is unnamed and belongs to another client"):
            Producer(gateway.url, credentials=house.credentials("all"))
        assert producer.send("flights", b"x").result(10) >= 0


def test_a_stager_releases_its_batches_over_another_connection(house: SecuredFiles, gateway: GatewayProcess) -> None:
    with StagingProducer(gateway.url, credentials=house.credentials("feed")) as staging:
        staging.send("flights", b"x").result(10)
    with AdminClient(gateway.url, credentials=house.credentials("feed")) as control:
        control.forget([staging.name], [staging.instance])
    with AdminClient(gateway.url, credentials=house.credentials("ops")) as control:
        assert staging.name not in {one["name"] for one in control.producers()}


def test_only_administrators_see_and_change_the_group(house: SecuredFiles, gateway: GatewayProcess) -> None:
    asked: list[Callable[[AdminClient], object]] = [
        lambda control: control.members(),
        lambda control: control.producers(),
        lambda control: control.fence("jfk-1"),
        lambda control: control.forget(["jfk-1"]),
        lambda control: control.leave("g1"),
        lambda control: control.change_roster("remove", "g1"),
        lambda control: control.force_roster(["g1"]),
    ]
    with AdminClient(gateway.url, credentials=house.credentials("all")) as control:
        assert control.status()["gateway"] == "g1"
        for ask in asked:
            with pytest.raises(NotAllowed, match="needs a token with --admin") as error:
                ask(control)
            refused(error, house, "rights")
    with AdminClient(gateway.url, credentials=house.credentials("ops")) as control:
        assert [member["name"] for member in control.members()] == ["g1"]
        assert control.status()["security"]["refused"]["rights"] >= len(asked)
        assert control.status()["security"]["tokens"] == len(house.tokens)
        with pytest.raises(NotAllowed, match="may read no topic"):
            control.save_offset("somebody", 0)


def test_a_revoked_token_ends_requests_in_flight(house: SecuredFiles, gateway: GatewayProcess) -> None:
    kept: list[Access] = []
    with Producer(gateway.url, credentials=house.credentials("feed"), delivery_timeout=30) as producer:
        assert producer.send("flights", b"x").result(10) >= 0
        change_tokens(house.file, lambda known: kept.append(known.pop("feed")))
        try:
            with pytest.raises(NotAllowed) as error:
                list(iter(lambda: producer.send("flights", b"x").result(20), None))
            refused(error, house, "token")
        finally:
            change_tokens(house.file, lambda known: known.update(feed=kept[0]))
    assert "a session ends: its token is no longer valid" in gateway.log_tail()


@pytest.mark.parametrize("away", [False, True])
def test_a_client_logs_that_its_token_was_removed(
    house: SecuredFiles, gateway: GatewayProcess, caplog: pytest.LogCaptureFixture, away: bool
) -> None:
    kept: list[Access] = []
    with closing_producer(gateway, house) as producer:
        assert producer.send("flights", b"x").result(10) >= 0
        if away:
            gateway.kill()
        change_tokens(house.file, lambda known: kept.append(known.pop("feed")))
        try:
            if away:
                gateway.start()
            wait_until(lambda: any(one.levelname == "ERROR" for one in caplog.records))
        finally:
            change_tokens(house.file, lambda known: known.update(feed=kept[0]))
    (line,) = [one.getMessage() for one in caplog.records if one.levelname == "ERROR"]
    assert line.startswith("producer 'p' has ended (number of failed records: 0): producer 'p' is not authorised: the token ")
    assert "ask " in line
    assert "for a new " in line


@pytest.mark.parametrize("ordering", ["total", "unordered"])
def test_a_client_logs_once_that_a_right_was_withdrawn(
    house: SecuredFiles, gateway: GatewayProcess, caplog: pytest.LogCaptureFixture, ordering: str
) -> None:
    def allow(*topics: str) -> None:
        change_tokens(house.file, lambda known: known.update(feed=known["feed"]._replace(produce=topics)))

    def send() -> TuttiError | None:
        return producer.send("flights", b"x", ordering=ordering).exception(20)

    with closing_producer(gateway, house) as producer:
        assert send() is None
        allow("other")
        try:
            wait_until(lambda: isinstance(send(), NotAllowed))
            assert isinstance(send(), NotAllowed)
        finally:
            allow("flights*")
            wait_until(lambda: send() is None)
    (line,) = [one.getMessage() for one in caplog.records if one.levelname == "ERROR"]
    assert line.startswith("producer 'p'")
    assert "token 'feed' may not write to topic 'flights': ask for a token that may" in line


def closing_producer(gateway: GatewayProcess, house: SecuredFiles) -> contextlib.closing[Producer]:
    """Return the producer `p` with the token `feed`, as soon as the gateway has read the token file of the earlier tests again."""
    opened: list[Producer] = []

    def open_producer() -> bool:
        with contextlib.suppress(NotAllowed):
            opened.append(Producer(gateway.url, "p", credentials=house.credentials("feed"), delivery_timeout=30))
        return bool(opened)

    wait_until(open_producer)
    return contextlib.closing(opened[0])


def test_a_gateway_with_another_key_is_not_contacted(house: SecuredFiles, gateway: GatewayProcess, tmp_path: Path) -> None:
    generate(tmp_path, ["g1"])
    credentials = Credentials(house.tokens["feed"], tmp_path / "group.keys")
    with recording_proxy(gateway.port) as proxy, pytest.raises(Unavailable, match="none of the public keys that are known here"):
        Producer(f"tutti://127.0.0.1:{proxy.port}", credentials=credentials, connect_timeout=0.5)
    assert all(len(to) == 64 for to, _ in proxy.recorded)  # a greeting, and not a word more


def test_an_unencrypted_gateway_gets_no_token(house: SecuredFiles, tmp_path: Path) -> None:
    with GatewayProcess(tmp_path) as open_one, recording_proxy(open_one.port) as proxy:
        with pytest.raises(Unavailable, match="does not encrypt, and credentials are never sent"):
            Producer(f"tutti://127.0.0.1:{proxy.port}", credentials=house.credentials("feed"), connect_timeout=4.0)
        assert house.tokens["feed"].encode() not in proxy.all()
        with Producer(open_one.url) as producer:  # and without credentials all is as ever
            assert producer.send("t", b"x").result(10) == 0


def test_an_eavesdropper_gets_no_token_or_record_and_cannot_replay(house: SecuredFiles, gateway: GatewayProcess) -> None:
    with recording_proxy(gateway.port) as proxy:
        url = f"tutti://127.0.0.1:{proxy.port}"
        with Producer(url, producer="heard", credentials=house.credentials("all")) as producer:
            assert producer.send("flights", SECRET_VALUE).result(10) >= 0
        with AdminClient(url, credentials=house.credentials("ops"), learn=False) as control:
            control.members()
        spoken = proxy.all()
        assert len(spoken) > 1000
        for secret in (SECRET_VALUE, b"heard", *(token.encode() for token in house.tokens.values())):
            assert secret not in spoken
        recorded = [bytes(to) for to, _ in proxy.recorded]
    with FlightSource(gateway.url, credentials=house.credentials("all")) as reads:
        before = reads.frontier().offset
        for said in recorded:
            with socket.create_connection(("127.0.0.1", gateway.port), timeout=10) as again, contextlib.suppress(ConnectionError):
                again.sendall(said)
                while again.recv(4096):  # it is closed
                    pass
        assert reads.frontier().offset == before


# Reads


def flight_client(gateway: GatewayProcess, ca: Path | None) -> flight.FlightClient:
    scheme = "grpc" if ca is None else "grpc+tls"
    trusted = None if ca is None else ca.read_text()
    return flight.FlightClient(f"{scheme}://127.0.0.1:{gateway.port + 2}", tls_root_certs=trusted)


def options(token: str) -> flight.FlightCallOptions:
    headers: Any = [(b"authorization", b"Bearer " + token.encode())] if token else []
    return flight.FlightCallOptions(timeout=5, headers=headers)


def test_each_may_read_what_is_listed_and_nothing_else(house: SecuredFiles, gateway: GatewayProcess) -> None:
    with Reader(gateway.url, topics=["flights"], credentials=house.client_file("reader")) as reader:
        assert b"one" in [record.value for record in reader.records()]
    for topics in (["delays"], ["flights", "delays"], None):
        with pytest.raises(NotAllowed, match="may not read") as error:
            list(Reader(gateway.url, topics=topics, credentials=house.credentials("reader")))
        refused(error, house, "rights")
    with flight_client(gateway, house.place / "tls.pem") as client:  # which other topics there are is told to who may read them
        for name, told in (("reader", False), ("all", True)):
            with pytest.raises((flight.FlightError, pa.ArrowException), match="this log has no topic 'flights-x'") as unknown:
                client.do_get(flight.Ticket(b'{"topics": ["flights-x"]}'), options(house.tokens[name])).read_all()
            assert ("did you mean" in str(unknown.value)) is told
    with FlightSource(gateway.url, credentials=house.credentials("reader")) as reads:
        assert {topic.name for topic in reads.topics()} == {"flights", "flights-raw"} & {topic.name for topic in reads.topics()}
        end = reads.frontier().offset
        for ask in (
            lambda: reads.plan(ScanRequest(0, end)),
            lambda: reads.plan(ScanRequest(0, end, ("delays",))),
            lambda: reads.bytes_end(0, end, 10),
            lambda: list(reads.scan(ScanRequest(0, end, ("delays",)))),
        ):
            with pytest.raises(NotAllowed):
                ask()
        assert reads.plan(ScanRequest(0, end, ("flights",)))
    with Reader(gateway.url, topics=["flights"], name="saver", credentials=house.credentials("reader")) as reader:
        reader.poll(5)
        reader.save()  # by the reads process, which its gateway knows by its key


@pytest.mark.parametrize("token", ["", "tutti_nobody", "late"])
def test_every_call_of_flight_asks_for_the_token(house: SecuredFiles, gateway: GatewayProcess, token: str) -> None:
    shown = options(house.tokens.get(token, token))
    everything = flight.FlightDescriptor.for_command(b"{}")
    with flight_client(gateway, house.place / "tls.pem") as client:
        calls: list[Callable[[], object]] = [
            lambda: client.do_get(flight.Ticket(b"{}"), shown).read_all(),
            lambda: client.get_flight_info(everything, shown),
            lambda: client.get_schema(everything, shown),
            lambda: list(client.list_flights(options=shown)),
            lambda: client.list_actions(shown),
            *(
                lambda kind=kind: list(client.do_action(flight.Action(kind, b"{}"), shown))
                for kind in ("frontier", "topics", "producers", "readers", "save_offset", "no such action")
            ),
        ]
        for call in calls:
            with pytest.raises((flight.FlightError, pa.ArrowException)) as error:  # get_schema raises the latter
                call()
            assert "frontier" not in str(error.value)
            assert not any(secret in str(error.value) for secret in house.tokens.values())


@pytest.mark.parametrize(("token", "topics"), [("ops", None), ("feed", ["flights"]), ("reader", None), ("reader", ["delays"])])
def test_a_query_without_read_rights_moves_no_named_reader(
    house: SecuredFiles, gateway: GatewayProcess, token: str, topics: list[str] | None
) -> None:
    with QueryProgress(gateway.url, credentials=house.credentials("all")) as progress:
        assert progress.report("mine", 1, name="archive", back=True) == ""
        with QueryProgress(gateway.url, credentials=house.credentials(token)) as other:
            for name in ("archive", ""):
                with pytest.raises(NotAllowed) as error:
                    other.report("evil", 0, name=name, topics=topics, back=True)
                refused(error, house, "rights")
        assert progress.readers()["archive"] == 1
        with QueryProgress(gateway.url, credentials=house.credentials("reader")) as query:
            assert query.report("query", 2, name="archive", topics=["flights"]) == ""


def test_flight_reports_missing_rights_as_its_own_error(house: SecuredFiles, gateway: GatewayProcess) -> None:
    with flight_client(gateway, house.place / "tls.pem") as client:
        shown = options(house.tokens["reader"])
        for call in (
            lambda: client.do_get(flight.Ticket(b'{"topics":["delays"]}'), shown).read_all(),
            lambda: list(client.do_action(flight.Action("producers", b"{}"), shown)),
        ):
            with pytest.raises(flight.FlightUnauthorizedError) as error:
                call()
            told = json.loads(error.value.extra_info)
            assert (told["code"], told["reason"]) == ("not_allowed", "rights")


def test_reads_are_encrypted_and_only_where_the_certificate_is_trusted(
    house: SecuredFiles, gateway: GatewayProcess, tmp_path: Path
) -> None:
    certificate(tmp_path, "other")
    for ca in (None, tmp_path / "other.pem"):
        with flight_client(gateway, ca) as client, pytest.raises(flight.FlightUnavailableError):
            list(client.do_action(flight.Action("frontier", b"{}"), options(house.tokens["all"])))
    credentials = Credentials(house.tokens["all"], house.place / "group.keys", tmp_path / "other.pem")
    with pytest.raises(Unavailable):
        Reader(gateway.url, credentials=credentials, connect_timeout=0.5)


# Admin pages


def page(gateway: GatewayProcess, house: SecuredFiles, path: str, token: str = "", scheme: str = "https") -> tuple[int, str]:
    context = ssl.create_default_context(cafile=str(house.place / "tls.pem"))
    headers = {"Authorization": f"Bearer {house.tokens.get(token, token)}"} if token else {}
    kind = partial(http.client.HTTPSConnection, context=context) if scheme == "https" else http.client.HTTPConnection
    with contextlib.closing(kind("127.0.0.1", gateway.port + 3, timeout=10)) as connection:
        connection.request("GET", path, headers=headers)
        answer = connection.getresponse()
        return answer.status, answer.read().decode()


def test_admin_pages_need_a_token_except_the_liveness_page(house: SecuredFiles, gateway: GatewayProcess) -> None:
    assert page(gateway, house, "/healthz")[0] == page(gateway, house, "/readyz")[0] == page(gateway, house, "/")[0] == 200
    for path in ("/metrics", "/v1/status", "/v1/history", "/v1/gateways", "/v1/topics", "/v1/readers", "/v1/records"):
        for token in ("", "tutti_nobody", "late"):
            status, said = page(gateway, house, path, token)
            assert status == 401
            assert not any(secret in said for secret in house.tokens.values())
    assert [page(gateway, house, path, "reader")[0] for path in ("/metrics", "/v1/status")] == [200, 200]
    assert [page(gateway, house, path, "reader")[0] for path in ("/v1/gateways", "/v1/records", "/v1/topics")] == [403, 403, 403]
    assert page(gateway, house, "/v1/records?topic=flights", "reader")[0] == 200
    assert page(gateway, house, "/v1/records?topic=flights&topic=delays", "reader")[0] == 403
    assert page(gateway, house, "/v1/gateways", "ops")[0] == 200
    with pytest.raises((OSError, http.client.HTTPException)):
        page(gateway, house, "/healthz", scheme="http")
    told = json.loads(page(gateway, house, "/v1/status", "ops")[1])
    assert told["reads_served"]["security"]["refused"]["unknown"] > 0


def test_rejections_at_every_port_are_counted_in_the_status(house: SecuredFiles, gateway: GatewayProcess) -> None:
    def counted() -> dict[str, int]:
        with AdminClient(gateway.url, credentials=house.credentials("ops")) as control:
            found: dict[str, int] = control.status()["security"]["refused"]
            return found

    def flight_action() -> None:
        with flight_client(gateway, house.place / "tls.pem") as client, pytest.raises(flight.FlightError):
            list(client.do_action(flight.Action("frontier", b"{}"), options("tutti_nobody")))

    for reason, rejected in (
        ("missing", lambda: page(gateway, house, "/v1/status")),
        ("unknown", lambda: page(gateway, house, "/v1/status", "tutti_nobody")),
        ("rights", lambda: page(gateway, house, "/v1/gateways", "reader")),
        ("unknown", flight_action),
    ):
        before = counted().get(reason, 0)
        rejected()
        deadline = time.monotonic() + 60
        while counted().get(reason, 0) == before:
            assert time.monotonic() < deadline, reason
            time.sleep(0.05)
    told = page(gateway, house, "/metrics", "ops")[1]
    assert f'tutti_tokens_refused_total{{code="unknown"}} {counted()["unknown"]}.0' in told


# What is left behind


def test_no_secret_is_in_logs_status_or_command_lines(house: SecuredFiles, gateway: GatewayProcess) -> None:
    secret = (house.place / "g1.secret").read_text().split('secret = "')[1][:40]
    told = page(gateway, house, "/v1/status", "ops")[1] + page(gateway, house, "/metrics", "ops")[1] + gateway.log_tail(10**7)
    for pid in (gateway.pid, json.loads(page(gateway, house, "/v1/status", "ops")[1])["reads_process"]["pid"]):
        told += Path(f"/proc/{pid}/cmdline").read_text() + Path(f"/proc/{pid}/environ").read_text()
    for hidden in (secret, *house.tokens.values()):
        assert hidden not in told
        assert hidden not in repr(house.credentials("feed")) + str(house.credentials("feed"))


def test_commands_authenticate_by_the_file_named_in_the_environment(
    house: SecuredFiles, gateway: GatewayProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "tutti_gateway", *arguments, "--url", gateway.url], capture_output=True, text=True, check=False
        )

    monkeypatch.setenv("TUTTI_TOKEN_FILE", str(house.client_file("ops")))
    done = run("members", "--json")
    assert (done.returncode, json.loads(done.stdout)[0]["name"]) == (0, "g1")
    monkeypatch.setenv("TUTTI_TOKEN", house.tokens["reader"])
    done = run("members")
    assert done.returncode == 1
    assert "token 'reader' may not list the members of the group" in done.stderr
    assert house.tokens["reader"] not in done.stdout + done.stderr
    done = run("tail", "--topic", "flights", "-n", "1", "--format", "value")
    assert (done.returncode, done.stdout) == (0, "one\n")
    monkeypatch.delenv("TUTTI_TOKEN_FILE")
    done = run("status")
    assert (done.returncode, "TUTTI_TOKEN is set and TUTTI_TOKEN_FILE is not" in done.stderr) == (2, True)


def test_a_topic_is_created_with_the_right_to_write_it(
    house: SecuredFiles, gateway: GatewayProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    def create(token: str, topic: str) -> Done:
        monkeypatch.setenv("TUTTI_TOKEN_FILE", str(house.client_file(token)))
        return tutti("topics", "create", topic, url=gateway.url)

    assert create("feed", "flights-new") == (0, "", "topic flights-new now exists\n")
    assert create("all", "flights-new") == (0, "", "topic flights-new exists already\n")
    denied = create("feed", "fuel")
    assert (denied.code, "token 'feed' may not write to topic 'fuel'" in denied.err) == (1, True)
    assert create("reader", "flights-2").code == 1
    told = tutti("topics", "describe", "fuel", url=gateway.url)
    assert (told.code, told.err) == (2, "error: no topic is named 'fuel': the topics are flights, flights-new, flights-raw\n")


def test_a_broken_token_file_is_logged_and_shown_until_it_is_right_again(house: SecuredFiles, gateway: GatewayProcess) -> None:
    good = house.file.read_text()
    house.file.write_text("[tokens\n")
    try:
        wait_until(lambda: "the token file has a problem" in gateway.log_tail())
        with AdminClient(gateway.url, credentials=house.credentials("ops")) as control:
            assert "the tokens read before stay valid: " in control.members()[0]["reason"]
            status = control.status()
        assert status["security"]["problems"].keys() == {"tokens"}
        assert (status["reason"], status["state"]) == ("", "primary")
    finally:
        house.file.write_text(good)
    wait_until(lambda: "the token file is valid again" in gateway.log_tail())


def test_another_certificate_is_served_without_a_restart_of_the_gateway(house: SecuredFiles, gateway: GatewayProcess) -> None:
    """The last one here: it changes the house."""
    (house.place / "tls.pem").write_text("cut")
    pid = gateway.pid
    for text in ("the new certificate is invalid; the old one stays in use", "the certificate has a problem"):
        wait_until(partial(lambda text: text in gateway.log_tail(), text))
    (house.place / "tls.key").unlink()
    certificate(house.place, "tls")
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        with contextlib.suppress(OSError, TuttiError, ConfigError):
            if page(gateway, house, "/healthz")[0] == 200:
                break
        time.sleep(0.05)
    with Reader(gateway.url, topics=["flights"], credentials=house.credentials("reader")) as reader:
        assert next(iter(reader.records())).value == b"one"
    assert gateway.pid == pid
    wait_until(lambda: "the certificate is valid again" in gateway.log_tail())
    assert "the reads process ended as planned and is restarted" in gateway.log_tail()
