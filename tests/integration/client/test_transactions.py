"""Tests of transactions with a real gateway: a client stages and commits, and invalid requests fail before anything is sent."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
import pytest

from tests.support.gateway_process import GatewayProcess
from tutti import Producer, Reader, limits
from tutti.errors import Fenced, Refused, UsageError
from tutti.transactions import StagedBatch, StagingProducer, Transactor, commit_progress


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatewayProcess]:
    with GatewayProcess(tmp_path_factory.mktemp("gateway")) as running:
        yield running


def values(*some: bytes) -> pa.RecordBatch:
    return pa.record_batch({"value": pa.array(some, pa.binary())})


def seen(gateway: GatewayProcess, topic: str) -> list[bytes | None]:
    with Reader(gateway.url, topics=[topic]) as reader:
        return [record.value for record in reader.records()]


def test_staged_records_become_visible_at_commit_in_the_named_order(gateway: GatewayProcess) -> None:
    with StagingProducer(gateway.url) as one, StagingProducer(gateway.url) as other, Producer(gateway.url) as plain:
        parts = StagingProducer.parts([*other.stage("order", values(b"3")), *one.stage("order", values(b"1", b"2"))])
        plain.send("order", b"0").result(30)
        assert seen(gateway, "order") == [b"0"]
        with Transactor(gateway.url, producer="committer") as committer:
            receipt = committer.commit(parts[::-1], b"first")
            assert (receipt.result(30), receipt.count) == (1, 3)
            assert committer.resume() == (3, b"first")
    assert seen(gateway, "order") == [b"0", b"1", b"2", b"3"]


def test_an_invalid_transaction_is_refused_and_the_next_one_is_accepted(gateway: GatewayProcess) -> None:
    with StagingProducer(gateway.url) as staging:
        parts = StagingProducer.parts(staging.stage("refused", values(b"x")))
        with Transactor(gateway.url, producer="refused") as committer:
            with pytest.raises(UsageError, match="a transaction of 0 batches"):
                committer.commit([], b"")
            with pytest.raises(UsageError, match="with 4294967296 records is not possible"):
                committer.commit([parts[0]._replace(records=1 << 32)], b"")
            with pytest.raises(UsageError, match=f"the limits are 1 to {limits.STAGED_BATCHES_MAX} "):
                committer.commit([StagedBatch(number, "t", 1, 0, 0) for number in range(limits.STAGED_BATCHES_MAX + 1)], b"")
            with pytest.raises(Refused, match="nothing is staged at position"):
                committer.commit([parts[0]._replace(position=1)], b"wrong").result(30)
            assert committer.resume() == (0, b"")
            committer.commit(parts, b"right").result(30)
    assert seen(gateway, "refused") == [b"x"]


def test_a_later_committer_fences_the_one_before(gateway: GatewayProcess) -> None:
    with StagingProducer(gateway.url) as staging, Transactor(gateway.url, producer="name") as before:
        parts = StagingProducer.parts(staging.stage("fenced", values(b"x")))
        with Transactor(gateway.url, producer="name") as later:
            with pytest.raises(Fenced):
                before.commit(parts, b"x").result(30)
            later.commit(parts, b"x").result(30)
    assert seen(gateway, "fenced") == [b"x"]


def test_a_progress_commits_without_a_record(gateway: GatewayProcess) -> None:
    """Proves that `resume` returns it, that no record of it is read or stays staged, and that deciding for none commits none."""
    assert commit_progress(gateway.url, "alone", "alone", lambda progress: progress + b"1") == b"1"
    assert commit_progress(gateway.url, "alone", "alone", lambda progress: progress + b"2") == b"12"
    assert commit_progress(gateway.url, "alone", "alone", lambda _progress: b"") == b""
    assert commit_progress(gateway.url, "another", "alone", lambda _progress: b"last") == b"last"
    with Transactor(gateway.url, producer="committer-of-all") as committer:
        for position in range(1, 60):
            committer.resume()  # after the refusal of the one before
            with pytest.raises(Refused, match=f"nothing is staged at position {position},"):
                committer.commit([StagedBatch(position, "alone", 1, 0, 0)], b"wrong").result(30)
    with Producer(gateway.url, producer="alone") as producer:
        assert producer.resume().progress == b"12"
    with Reader(gateway.url) as reader:
        assert "alone" not in {record.topic for record in reader.records()}
