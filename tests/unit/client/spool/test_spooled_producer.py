"""Tests of the promises of a spool, with a fake gateway behind a real socket."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from tests.unit.client.fake_gateway import FakeGateway, Log, until
from tests.unit.client.spool.spools import committed, files, opened
from tests.unit.client.two_gateways import silent
from tutti import limits
from tutti.data import client_protocol
from tutti.data.frames.frame import Frame
from tutti.errors import Fenced, NotAllowed, Refused, TooLarge, Unavailable, Unknown, UsageError
from tutti.producer import Producer
from tutti.spool.commit_mark import APPLICATION_PROGRESS_BYTES_MAX

# -- outages and restarts


def test_a_record_is_safe_without_any_gateway_and_the_next_producer_brings_it_into_the_log(
    gateway: FakeGateway, spool: Path, caplog: pytest.LogCaptureFixture
) -> None:
    gateway.stop()
    with opened(gateway, spool) as p:
        receipts = [p.send("t", b"%d" % number) for number in range(1000)]
        receipts[-1].spooled(30)
        assert p.spool.records == len(p) == 1000
        assert p.spool.earlier == 0
        with pytest.raises(Unavailable):
            p.resume(timeout=0.01)
    with pytest.raises(Unknown, match="keeps "):
        receipts[0].result(0)
    assert "of producer 'jfk' keeps 1000 records: " in caplog.text
    gateway.start()
    with opened(gateway, spool, delivery_timeout=30) as p:
        assert p.spool.earlier + len(gateway.log.records) >= 1000
        last = p.send("t", b"1000")
        assert last.result(30) == 1000
        assert p.spool.records == p.spool.earlier == 0
    assert committed(gateway) == [b"%d" % number for number in range(1001)]
    assert files(spool) == ["LOCK", "RESERVE", "spool.json"]  # nothing is left of what is committed


def test_a_record_in_flight_fails_once_at_the_end(gateway: FakeGateway, spool: Path, caplog: pytest.LogCaptureFixture) -> None:
    gateway.rule = silent(gateway)
    p = opened(gateway, spool)
    receipt = p.send("t", b"x")
    until(lambda: any(isinstance(message, Frame) for message in gateway.heard))
    with pytest.raises(TimeoutError):
        receipt.result(0.01)  # a second outcome would release the lock of this waiter twice
    p.close()
    with pytest.raises(Unknown, match="keeps "):
        receipt.result(10)
    assert "internal error" not in caplog.text


def test_a_gateway_that_goes_and_comes_makes_no_difference(gateway: FakeGateway, spool: Path) -> None:
    with opened(gateway, spool, delivery_timeout=30) as p:
        for number in range(300):
            if number % 100 == 50:
                gateway.stop()
            if number % 100 == 90:
                gateway.start()
            p.send("ab"[number % 2], b"%d" % number)
    assert committed(gateway) == [b"%d" % number for number in range(300)]


def test_records_in_the_spool_use_no_memory(gateway: FakeGateway, spool: Path) -> None:
    gateway.stop()
    with opened(gateway, spool, buffer_bytes=limits.BUFFER_BYTES_MIN, batch_bytes=4096) as p:
        receipts = [p.send("t", bytes(1000)) for _ in range(2000)]
        receipts[-1].spooled(30)
        assert not any(receipt.batch.body for receipt in receipts)
        assert not p._accumulator.queue
        assert not p._accumulator.buffered
        gateway.start()
        until(lambda: not len(p))
        assert [receipt.result(0) for receipt in receipts] == list(range(2000))
    assert len(gateway.log.records) == 2000


def test_receipts_of_one_run_know_their_offsets_after_they_were_read_back(gateway: FakeGateway, spool: Path) -> None:
    told: list[int | None] = []
    gateway.stop()
    with opened(gateway, spool, delivery_timeout=30, buffer_bytes=limits.BUFFER_BYTES_MIN) as p:
        for number in range(200):
            p.send("t", b"%03d" % number * 300, on_delivery=lambda error, receipt: told.append(receipt.offset))
        gateway.start()
    assert told == list(range(200))


def test_another_compression_may_be_chosen_while_the_spool_holds_records(gateway: FakeGateway, spool: Path) -> None:
    gateway.stop()
    for compression in ("zstd", None, "lz4"):
        with opened(gateway, spool, compression=compression) as p:
            p.send_batch("t", pa.record_batch({"value": [str(compression).encode() * 100] * 2})).spooled(30)
    gateway.start()
    with opened(gateway, spool, delivery_timeout=30):
        pass
    assert committed(gateway) == [name * 100 for name in (b"zstd", b"zstd", b"None", b"None", b"lz4", b"lz4")]


# -- what the gateway says


def test_after_an_abort_it_continues_in_order(gateway: FakeGateway, spool: Path) -> None:
    heard = 0

    def rule(one: Any) -> None:
        nonlocal heard
        line = gateway.log.lines.get("jfk")
        if isinstance(one, Frame) and line is not None and one.first_sequence > line.sequence:
            heard += 1
            line.closed = line.closed or heard in (2, 3, 7)  # the default answers with an abort then

    gateway.rule = rule
    with opened(gateway, spool, delivery_timeout=30) as p:
        receipts = []
        for number in range(40):
            receipts.append(p.send("t", b"%d" % number))
            receipts[-1].spooled(30)  # a batch of its own
        assert [receipt.result(30) for receipt in receipts] == list(range(40))
        assert p.epoch > 1
    assert committed(gateway) == [b"%d" % number for number in range(40)]


def test_records_that_the_log_refuses_are_dead_lettered_and_the_next_ones_continue(
    gateway: FakeGateway, spool: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def rule(heard: Any) -> list[Any] | None:
        if isinstance(heard, Frame) and b"bad" in bytes(heard.body):
            return [
                client_protocol.RefusedAnswer(
                    heard.producer, heard.epoch, heard.first_sequence, "malformed", "it is bad", retry=False
                )
            ]
        return None

    gateway.rule = rule
    p = opened(gateway, spool, delivery_timeout=30)
    values = [b"0", b"bad", b"2", b"bad", b"bad", b"5"]
    receipts = [p.send("t" if value == b"bad" else "u", value) for value in values]
    for receipt, value in zip(receipts, values, strict=True):
        if value == b"bad":
            with pytest.raises(Refused, match="it is bad"):
                receipt.result(30)
        else:
            receipt.result(30)
    assert committed(gateway) == [b"0", b"2", b"5"]
    assert p.spool[:2] == (0, 0)
    assert p.spool.refused == 3
    found = sorted((spool / "refused").iterdir())
    assert len(found) == 2
    aside = sum(path.stat().st_size for path in found)
    stage: Any = p._spool
    assert stage._store.refused_bytes == aside, "it takes of the spool's room"
    p.close()
    with pa.ipc.open_stream(found[0].read_bytes()) as stream:
        assert stream.schema.metadata[b"topic"] == b"t"
        assert b"it is bad" in stream.schema.metadata[b"reason"]
        assert stream.read_all().column("value").to_pylist() == [b"bad"]
    assert "the gateway refused " in caplog.text
    gateway.rule = None
    with opened(gateway, spool, delivery_timeout=30) as p:  # it does not come back
        p.send("t", b"6")
    assert committed(gateway) == [b"0", b"2", b"5", b"6"]


def test_a_topic_that_is_refused_holds_up_nothing(gateway: FakeGateway, spool: Path) -> None:
    def rule(heard: Any) -> list[Any] | None:
        if isinstance(heard, client_protocol.OpenTopic) and heard.name == "no":
            return [client_protocol.Denied(heard.request, "topics", "there are too many")]
        return None

    gateway.rule = rule
    p = opened(gateway, spool, delivery_timeout=30)
    receipts = [p.send("no" if number % 3 == 1 else "t", b"%d" % number) for number in range(12)]
    p.flush(30)
    for number, receipt in enumerate(receipts):
        assert isinstance(receipt.error, Refused if number % 3 == 1 else type(None))
    p.close()
    assert committed(gateway) == [b"%d" % number for number in range(12) if number % 3 != 1]
    assert files(spool) == ["LOCK", "RESERVE", "refused", "spool.json"]


def test_a_topic_that_the_credentials_do_not_open_ends_the_producer_and_keeps_the_spool(gateway: FakeGateway, spool: Path) -> None:
    def rule(heard: Any) -> list[Any] | None:
        if isinstance(heard, client_protocol.OpenTopic) and heard.name == "no":
            return [client_protocol.Denied(heard.request, "rights", "the token may not write there")]
        return None

    gateway.rule = rule
    p = opened(gateway, spool, delivery_timeout=30)
    p.send("t", b"0").result(30)
    receipts = [p.send("no", b"1"), p.send("t", b"2")]
    for receipt in receipts:
        with pytest.raises(NotAllowed, match="may not write there"):
            receipt.result(30)
    assert p.spool.refused == 0
    p.close()
    gateway.rule = None
    with opened(gateway, spool, delivery_timeout=30) as p:
        p.flush(30)
    assert committed(gateway) == [b"0", b"1", b"2"]


@pytest.mark.parametrize("when", ["at first", "meanwhile"])
def test_a_producer_may_dead_letter_records_that_the_credentials_do_not_allow(gateway: FakeGateway, spool: Path, when: str) -> None:
    """Proves that the other topics continue, and that the error names the topic."""

    def rule(heard: Any) -> list[Any] | None:
        if when == "at first" and isinstance(heard, client_protocol.OpenTopic) and heard.name == "no":
            return [client_protocol.Denied(heard.request, "rights", "may not")]
        if when == "meanwhile" and isinstance(heard, Frame) and b"no" in bytes(heard.body):
            return [
                client_protocol.RefusedAnswer(heard.producer, heard.epoch, heard.first_sequence, "rights", "may not", retry=False)
            ]
        return None

    class Aside(Producer):
        dead_letters_denied = True

    gateway.rule = rule
    p = Aside(gateway.url, producer="jfk", spool=spool, delivery_timeout=30)
    receipts = [p.send("no" if number % 3 == 1 else "t", b"no" if number % 3 == 1 else b"%d" % number) for number in range(12)]
    p.flush(30)
    for receipt in receipts[1::3]:
        assert isinstance(receipt.error, NotAllowed)
        assert receipt.error.topic == "no"
    assert p.spool.refused == 4
    p.close()
    assert committed(gateway) == [b"%d" % number for number in range(12) if number % 3 != 1]


def test_a_right_revoked_meanwhile_ends_the_producer_and_keeps_the_spool(gateway: FakeGateway, spool: Path) -> None:
    def rule(heard: Any) -> list[Any] | None:
        if isinstance(heard, Frame) and b"late" in bytes(heard.body):
            return [
                client_protocol.RefusedAnswer(
                    heard.producer, heard.epoch, heard.first_sequence, "rights", "not any more", retry=False
                )
            ]
        return None

    gateway.rule = rule
    p = opened(gateway, spool, delivery_timeout=30)
    p.send("t", b"0").result(30)
    with pytest.raises(NotAllowed, match="not any more"):
        p.send("t", b"late").result(30)
    assert p.spool.refused == 0
    p.close()
    gateway.rule = None
    with opened(gateway, spool, delivery_timeout=30) as p:
        p.flush(30)
    assert committed(gateway) == [b"0", b"late"]


def test_an_oversized_record_never_enters_the_spool(gateway: FakeGateway, spool: Path) -> None:
    with opened(gateway, spool, delivery_timeout=30) as p:
        receipt = p.send("t", bytes(limits.RECORD_BYTES_MAX + 1))
        for ask in (receipt.spooled, receipt.result):
            with pytest.raises(TooLarge):
                ask(30)
        assert not p.spool.records


def test_a_newer_instance_fences_this_one_and_the_spool_is_kept(gateway: FakeGateway, spool: Path) -> None:
    p = opened(gateway, spool, delivery_timeout=30)
    p.send("t", b"0").result(30)
    gateway.stop()
    kept = p.send("t", b"1")
    kept.spooled(30)
    gateway.log.lines["jfk"].epoch += 1
    gateway.log.lines["jfk"].instance = b"another".ljust(16)
    gateway.start()
    with pytest.raises(Fenced):
        kept.result(30)
    with pytest.raises(Fenced):
        p.send("t", b"2")
    p.close()
    with opened(gateway, spool, delivery_timeout=30) as p:
        assert p.resume().sequence == 2
    assert committed(gateway) == [b"0", b"1"]


# -- a spool and a log that do not belong together


def left_over(gateway: FakeGateway, spool: Path) -> None:
    """One record is committed, and one has left and is not."""

    def rule(heard: Any) -> list[Any] | None:
        return [] if isinstance(heard, Frame) and heard.first_sequence > 1 else None

    gateway.rule = rule
    p = opened(gateway, spool)
    p.send("t", b"0").result(30)
    p.send("t", b"1")
    until(lambda: any(frame.first_sequence == 2 for frame in gateway.frames()))
    p.close()
    gateway.rule = None


def test_another_log_is_refused_before_any_request_about_it(gateway: FakeGateway, spool: Path) -> None:
    left_over(gateway, spool)
    with FakeGateway(Log(uuid="f" * 32)) as other:
        p = opened(other, spool)
        with pytest.raises(Refused, match=r"belongs to log 7d1e5a34.* serves log ffff"):
            p.resume(30)
        with pytest.raises(Refused, match="belongs to log"):
            p.send("t", b"2")
        p.close()
        assert not other.requests(client_protocol.OpenProducer)
    with opened(gateway, spool, delivery_timeout=30):
        pass
    assert committed(gateway) == [b"0", b"1"]


@pytest.mark.parametrize("what", ["forgotten", "forgotten and begun again", "another spool", "an older copy"])
def test_if_the_commits_are_unknown_nothing_is_sent(what: str, gateway: FakeGateway, spool: Path) -> None:
    left_over(gateway, spool)
    line = gateway.log.lines["jfk"]
    if what == "forgotten":
        line.number, line.sequence, line.progress = 99, 0, b""
    elif what == "forgotten and begun again":
        line.number, line.sequence, line.progress = 99, 1, b"mine"
    elif what == "another spool":
        line.sequence, line.progress = 9, line.progress[:4] + bytes(16) + line.progress[20:]
    else:
        line.sequence, line.progress = 9, line.progress[:20] + b"\xff\0\0\0\0\0\0\0" + line.progress[28:]
    p = opened(gateway, spool)
    with pytest.raises(Refused, match="start with a new") as told:
        p.resume(30)
    assert told.value.code == "spool"
    before = len(gateway.frames())
    p.close()
    assert len(gateway.frames()) == before
    assert any(name.endswith(".seg") for name in files(spool))


def test_another_program_may_have_used_the_name_while_the_spool_was_empty(gateway: FakeGateway, spool: Path) -> None:
    with opened(gateway, spool, delivery_timeout=30) as p:
        p.send("t", b"0")
    with Producer(gateway.url, producer="jfk") as plain:
        assert plain.resume() == (1, b"")
        plain.send("t", b"1", progress=b"mine")
    gateway.stop()
    with opened(gateway, spool) as p:
        p.send("t", b"2").spooled(30)
    gateway.start()
    with opened(gateway, spool, delivery_timeout=30) as p:
        p.send("t", b"3")
        assert p.resume(30).sequence == 4
    assert committed(gateway) == [b"0", b"1", b"2", b"3"]


# -- progress


def test_resume_continues_after_the_records_in_the_spool(gateway: FakeGateway, spool: Path) -> None:
    with Producer(gateway.url, producer="jfk") as plain:
        plain.send("t", b"0", progress=b"zero")
    with opened(gateway, spool, delivery_timeout=30) as p:
        assert p.resume() == (1, b"zero")
        p.send("t", b"1", progress=b"one")
        assert p.resume() == (2, b"one")
        p.send("t", b"2").result(30)
        assert p.resume() == (3, b"one")
    gateway.stop()
    with opened(gateway, spool) as p:
        p.send("t", b"3", progress=b"three")
        p.send("t", b"4").spooled(30)
        assert p.spool.progress == b"three"
    with opened(gateway, spool) as p:
        assert p.spool.progress == b"three"  # as this disk knows it, without any gateway
    gateway.rule = lambda heard: [] if isinstance(heard, Frame) else None
    gateway.start()
    with opened(gateway, spool) as p:
        assert p.resume(30) == (5, b"three")
    gateway.rule = None
    with opened(gateway, spool, delivery_timeout=30) as p:
        assert p.resume(30) == (5, b"three")
    with Producer(gateway.url, producer="jfk") as plain:
        assert plain.resume() == (5, b"three")  # also of who takes the spool away
    assert committed(gateway) == [b"%d" % number for number in range(5)]


def test_the_limit_for_progress_is_lower(gateway: FakeGateway, spool: Path) -> None:
    with opened(gateway, spool, delivery_timeout=30) as p:
        p.send("t", b"0", progress=bytes(APPLICATION_PROGRESS_BYTES_MAX)).result(30)
        with pytest.raises(UsageError, match=f"at most {APPLICATION_PROGRESS_BYTES_MAX}"):
            p.send("t", b"1", progress=bytes(APPLICATION_PROGRESS_BYTES_MAX + 1))
        with pytest.raises(UsageError, match=f"at most {APPLICATION_PROGRESS_BYTES_MAX}"):
            p.send_batch("t", pa.record_batch({"value": [b"1"]}), progress=bytes(APPLICATION_PROGRESS_BYTES_MAX + 1))


def test_batches_compressed_by_another_run_are_sent_unchanged(gateway: FakeGateway, spool: Path) -> None:
    gateway.stop()
    value = b"z" * 900_000
    count = 12  # more than a frame holds without compression
    records = pa.record_batch({"value": pa.array([value] * count, pa.binary())})
    with opened(gateway, spool, compression="zstd") as p:
        p.send_batch("t", records).spooled(30)
    sizes: list[int] = []

    def rule(heard: Any) -> None:
        if isinstance(heard, Frame):
            sizes.append(len(heard.body))

    gateway.rule = rule
    gateway.start()
    with opened(gateway, spool, delivery_timeout=30) as p:
        p.send("t", b"behind").result(30)
    assert max(sizes) < limits.BODY_BYTES_MAX // 8
    assert committed(gateway) == [value] * count + [b"behind"]
