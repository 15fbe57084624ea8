"""Tests of quotas with a real gateway: a token stays within its records and bytes a second, other clients are not slowed, no record
is lost or refused, and a changed token file applies to a connected client.
"""

from __future__ import annotations

import contextlib
import http.client
import logging
import ssl
import threading
import time
from collections.abc import Iterator

import pyarrow as pa
import pytest

from tests.support.gateway_process import GatewayProcess
from tests.support.secured import SecuredFiles
from tests.support.waiting import wait_until
from tutti import Aborted, Producer, Reader, Unknown
from tutti.io.admin import AdminClient
from tutti.security.tokens import Access, change_tokens
from tutti_gateway.core import limits

RECORDS_PER_S = 1000
BURST_S = limits.QUOTA_BURST_US / 1e6


@pytest.fixture
def house(tmp_path_factory: pytest.TempPathFactory) -> SecuredFiles:
    return SecuredFiles(tmp_path_factory.mktemp("quotas"))


@pytest.fixture
def gateway(house: SecuredFiles) -> Iterator[GatewayProcess]:
    set_quota(house, records_per_s=RECORDS_PER_S)
    with house.gateway() as process:
        yield process


def set_quota(house: SecuredFiles, records_per_s: int = 0, bytes_per_s: int = 0) -> None:
    """Set the quotas of the token `feed`."""

    def change(known: dict[str, Access]) -> None:
        known["feed"] = known["feed"]._replace(records_per_s=records_per_s, bytes_per_s=bytes_per_s)

    change_tokens(house.file, change)


def status(house: SecuredFiles, gateway: GatewayProcess) -> dict[str, object]:
    with AdminClient(gateway.url, credentials=house.credentials("ops")) as control:
        return dict(control.status())


def values(house: SecuredFiles, gateway: GatewayProcess, topic: str) -> list[bytes | None]:
    with Reader(gateway.url, topics=[topic], start="earliest", credentials=house.credentials("all")) as reader:
        return [record.value for record in reader.records()]


def test_a_token_stays_within_its_records_a_second_and_other_clients_are_not_slowed(
    house: SecuredFiles, gateway: GatewayProcess
) -> None:
    expected = [b"%d" % number for number in range(5 * RECORDS_PER_S)]
    committed: list[tuple[float, int]] = []  # time of the receipt of each batch, and the records so far
    slowest = 0.0
    begin = time.monotonic()

    def feed() -> None:
        with Producer(gateway.url, credentials=house.credentials("feed"), batch_bytes=10_000) as producer:
            for value in expected:
                producer.send("flights", value, on_delivery=lambda _, __: committed.append((time.monotonic(), len(committed) + 1)))

    thread = threading.Thread(target=feed)
    thread.start()
    with Producer(gateway.url, credentials=house.credentials("all")) as other:
        while thread.is_alive():
            before = time.monotonic()
            other.send("delays", b"x" * 1000).result(10)
            slowest = max(slowest, time.monotonic() - before)
    thread.join()
    assert len(committed) == len(expected)
    for at, records in committed:
        # A receipt comes after its batch was accepted, so the count at its time is at most the quota since the start.
        assert records <= RECORDS_PER_S * (at - begin + BURST_S) + 1
    assert committed[-1][0] - begin >= len(expected) / RECORDS_PER_S - BURST_S
    assert slowest < 2.0, "it waited for the other client's quota"
    assert values(house, gateway, "flights") == expected
    security = status(house, gateway)["security"]
    assert isinstance(security, dict)
    assert security["quotas"]["throttled_us"]["feed"] > 2e6
    assert security["quotas"]["waiting_bytes"] == 0
    context = ssl.create_default_context(cafile=str(house.place / "tls.pem"))
    connection = http.client.HTTPSConnection("127.0.0.1", gateway.port + 3, timeout=10, context=context)
    connection.request("GET", "/metrics", headers={"Authorization": f"Bearer {house.tokens['ops']}"})
    assert 'tutti_tokens_throttled_seconds_total{token="feed"}' in connection.getresponse().read().decode()
    connection.close()


@pytest.mark.parametrize("ordering", ["total", "unordered"])
def test_a_batch_far_above_a_small_quota_is_delivered(house: SecuredFiles, gateway: GatewayProcess, ordering: str) -> None:
    """Proves that a batch costs its quota once, whatever the client sends while the batch waits for 4 s."""
    batch = pa.record_batch({"value": pa.array([b"x" * 1000] * 4 * RECORDS_PER_S)})
    with Producer(gateway.url, credentials=house.credentials("feed")) as producer:
        begin = time.monotonic()
        if ordering == "total":
            receipts = [producer.send_batch("flights", batch), producer.send_batch("flights", batch.slice(0, 100))]
        else:
            receipts = [producer.send("flights", b"x" * 1000, ordering="unordered") for _ in range(4 * RECORDS_PER_S)]
        receipts[-1].result(60)
        assert time.monotonic() - begin >= 4 - BURST_S
    found = status(house, gateway)
    assert found["refused"] == {}
    records = found["unordered" if ordering == "unordered" else "committed"]
    assert isinstance(records, dict)
    assert records["records"] == (4 * RECORDS_PER_S if ordering == "unordered" else 4 * RECORDS_PER_S + 100)


def test_a_throttled_client_names_its_quota_and_sends_no_batch_twice(
    house: SecuredFiles, gateway: GatewayProcess, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "tutti.client.producer")
    with Producer(gateway.url, "p", credentials=house.credentials("feed"), batch_bytes=10_000) as producer:
        receipts = [producer.send("flights", b"x" * 100) for _ in range(2 * RECORDS_PER_S)]
        receipts += [producer.send_batch("flights", pa.record_batch({"value": pa.array([b"y"] * 8 * RECORDS_PER_S)}))]  # 8 s
        while not receipts[-1].done():
            found = producer.stats()
            assert (found.connected, found.outage) == (True, 0.0)
            time.sleep(0.02)
        assert producer.stats().records_resent == 0
    assert [line.partition(" at ")[0] for line in caplog.messages] == [
        "producer 'p': connected to gateway g1",
        f"producer 'p': throttled by the quota of its token ({RECORDS_PER_S} records/s): gateway g1",
    ]
    ingest = status(house, gateway)["ingest"]
    assert isinstance(ingest, dict)
    assert ingest["records"] == 10 * RECORDS_PER_S


def test_a_changed_quota_applies_to_a_connected_client(house: SecuredFiles, gateway: GatewayProcess) -> None:
    set_quota(house, bytes_per_s=10_000)
    with Producer(gateway.url, credentials=house.credentials("feed")) as producer:
        begin = time.monotonic()
        receipts = []

        def throttled() -> bool:
            receipts.append(producer.send("flights", b"x" * 10_000))
            security = status(house, gateway)["security"]
            assert isinstance(security, dict)
            return bool(security["quotas"]["waiting_bytes"])

        wait_until(throttled)
        receipts.append(producer.send_batch("flights", pa.record_batch({"value": pa.array([b"y" * 10_000] * 25)})))  # 25 s
        set_quota(house)
        for receipt in receipts:
            receipt.result(20)
        assert time.monotonic() - begin < 20
        before = time.monotonic()
        producer.send_batch("flights", pa.record_batch({"value": pa.array([b"z" * 10_000] * 100)})).result(20)  # 100 s
        assert time.monotonic() - before < 20
    assert len(values(house, gateway, "flights")) == len(receipts) - 1 + 25 + 100


def test_records_above_the_quota_get_receipts_until_the_delivery_timeout(house: SecuredFiles, gateway: GatewayProcess) -> None:
    with (
        contextlib.suppress(Unknown, Aborted),
        Producer(gateway.url, credentials=house.credentials("feed"), delivery_timeout=3) as p,
    ):
        receipts = [p.send("flights", b"x" * 50) for _ in range(8000)]
        p.flush()
        committed = sum(receipt.error is None for receipt in receipts)
        assert 2 * RECORDS_PER_S < committed < 4 * RECORDS_PER_S
    assert len(values(house, gateway, "flights")) >= committed
