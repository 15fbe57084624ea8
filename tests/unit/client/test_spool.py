"""Proves what applications are promised of a spool, with the gateway of fake.py behind a real socket."""

from __future__ import annotations

import errno
import json
import logging
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from gateway.client.producer import Producer
from gateway.client.spool.word import PROGRESS_ROOM
from gateway.core import limits
from gateway.data import wire
from gateway.data.frame import Frame, crc32c
from gateway.errors import (
    BufferFull,
    Damaged,
    DirectoryRefused,
    DiskFailed,
    DiskFull,
    Fenced,
    FormatError,
    Refused,
    TooLarge,
    Unavailable,
    Unknown,
    UsageError,
    WrongDirectory,
)
from gateway.log.storage import Storage
from tests.unit.client.fake import FakeGateway, Log, until


@pytest.fixture
def gateway() -> Iterator[FakeGateway]:
    with FakeGateway() as fake:
        yield fake


@pytest.fixture
def spool(tmp_path: Path) -> Path:
    return tmp_path / "spool"


def opened(gateway: FakeGateway, spool: Path, **options: Any) -> Producer:
    return Producer(gateway.url, producer="jfk", spool=spool, **{"delivery_timeout": 0.01, **options})


def committed(gateway: FakeGateway) -> list[bytes | None]:
    return gateway.log.values()


def files(spool: Path) -> list[str]:
    return sorted(path.name for path in spool.iterdir())


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
    with pytest.raises(Unknown, match="stay in spool"):
        receipts[0].result(0)
    assert "1000 records of producer 'jfk' stay in spool" in caplog.text
    gateway.start()
    with opened(gateway, spool, delivery_timeout=30) as p:
        assert p.spool.earlier + len(gateway.log.records) >= 1000
        last = p.send("t", b"1000")
        assert last.result(30) == 1000
        assert p.spool.records == p.spool.earlier == 0
    assert committed(gateway) == [b"%d" % number for number in range(1001)]
    assert files(spool) == ["LOCK", "spool.json"]  # nothing is left of what is committed


def test_a_gateway_that_goes_and_comes_makes_no_difference(gateway: FakeGateway, spool: Path) -> None:
    with opened(gateway, spool, delivery_timeout=30) as p:
        for number in range(300):
            if number % 100 == 50:
                gateway.stop()
            if number % 100 == 90:
                gateway.start()
            p.send("ab"[number % 2], b"%d" % number)
    assert committed(gateway) == [b"%d" % number for number in range(300)]


def test_what_is_in_the_spool_takes_no_memory(gateway: FakeGateway, spool: Path) -> None:
    gateway.stop()
    with opened(gateway, spool, buffer_bytes=limits.BUFFER_BYTES_MIN, batch_bytes=4096) as p:
        receipts = [p.send("t", bytes(1000)) for _ in range(2000)]
        receipts[-1].spooled(30)
        assert not any(receipt.batch.body for receipt in receipts)
        assert not p._feed.queue
        assert not p._feed.buffered
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


def test_an_abort_is_gone_on_after_in_order(gateway: FakeGateway, spool: Path) -> None:
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


def test_what_the_log_will_not_have_is_put_aside_and_what_follows_goes_on(
    gateway: FakeGateway, spool: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def rule(heard: Any) -> list[Any] | None:
        if isinstance(heard, Frame) and b"bad" in bytes(heard.body):
            return [wire.RefusedAnswer(heard.producer, heard.epoch, heard.first_sequence, "malformed", "it is bad", retry=False)]
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
    p.close()
    found = sorted((spool / "refused").iterdir())
    assert len(found) == 2
    with pa.ipc.open_stream(found[0].read_bytes()) as stream:
        assert stream.schema.metadata[b"topic"] == b"t"
        assert b"it is bad" in stream.schema.metadata[b"reason"]
        assert stream.read_all().column("value").to_pylist() == [b"bad"]
    assert "put aside in" in caplog.text
    gateway.rule = None
    with opened(gateway, spool, delivery_timeout=30) as p:  # it does not come back
        p.send("t", b"6")
    assert committed(gateway) == [b"0", b"2", b"5", b"6"]


def test_a_topic_that_is_refused_holds_up_nothing(gateway: FakeGateway, spool: Path) -> None:
    def rule(heard: Any) -> list[Any] | None:
        if isinstance(heard, wire.OpenTopic) and heard.name == "no":
            return [wire.Denied(heard.request, "topics", "there are too many")]
        return None

    gateway.rule = rule
    p = opened(gateway, spool, delivery_timeout=30)
    receipts = [p.send("no" if number % 3 == 1 else "t", b"%d" % number) for number in range(12)]
    p.flush(30)
    for number, receipt in enumerate(receipts):
        assert isinstance(receipt.error, Refused if number % 3 == 1 else type(None))
    p.close()
    assert committed(gateway) == [b"%d" % number for number in range(12) if number % 3 != 1]
    assert files(spool) == ["LOCK", "refused", "spool.json"]


def test_what_is_too_large_never_comes_into_the_spool(gateway: FakeGateway, spool: Path) -> None:
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


def test_another_log_is_refused_before_anything_is_asked_of_it(gateway: FakeGateway, spool: Path) -> None:
    left_over(gateway, spool)
    with FakeGateway(Log(uuid="f" * 32)) as other:
        p = opened(other, spool)
        with pytest.raises(Refused, match=r"belongs to log 7d1e5a34.* serves log ffff"):
            p.resume(30)
        with pytest.raises(Refused, match="belongs to log"):
            p.send("t", b"2")
        p.close()
        assert not other.requests(wire.OpenProducer)
    with opened(gateway, spool, delivery_timeout=30):
        pass
    assert committed(gateway) == [b"0", b"1"]


@pytest.mark.parametrize("what", ["forgotten", "forgotten and begun again", "another spool", "an older copy"])
def test_where_it_cannot_be_known_what_is_committed_nothing_is_sent(what: str, gateway: FakeGateway, spool: Path) -> None:
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
    with pytest.raises(Refused, match="begin with a new") as told:
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


def test_resume_goes_on_behind_what_is_in_the_spool(gateway: FakeGateway, spool: Path) -> None:
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


def test_progress_has_less_room(gateway: FakeGateway, spool: Path) -> None:
    with opened(gateway, spool, delivery_timeout=30) as p:
        p.send("t", b"0", progress=bytes(PROGRESS_ROOM)).result(30)
        with pytest.raises(UsageError, match=f"at most {PROGRESS_ROOM}"):
            p.send("t", b"1", progress=bytes(PROGRESS_ROOM + 1))
        with pytest.raises(UsageError, match=f"at most {PROGRESS_ROOM}"):
            p.send_batch("t", pa.record_batch({"value": [b"1"]}), progress=bytes(PROGRESS_ROOM + 1))


# -- mistakes


def test_what_cannot_be_is_said(gateway: FakeGateway, spool: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="needs a name"):
        Producer(gateway.url, spool=spool)
    with pytest.raises(UsageError, match="spool_bytes=5 is too small"):
        opened(gateway, spool, spool_bytes=5)
    for wrong in ("", 5):
        with pytest.raises(UsageError, match="path of a directory"):
            Producer(gateway.url, producer="jfk", spool=wrong)  # type: ignore[arg-type]
    with opened(gateway, spool, delivery_timeout=30) as p:
        with pytest.raises(DirectoryRefused, match=f"in use by process {os.getpid()}"):
            opened(gateway, spool)
        with pytest.raises(UsageError, match="no place in a spool"):
            p.send("t", b"x", ordering="unordered")
    with pytest.raises(WrongDirectory, match="belongs to producer 'jfk', not to 'lga'"):
        Producer(gateway.url, producer="lga", spool=spool)
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(WrongDirectory, match=r"no spool: it holds 'notes.txt'"):
        opened(gateway, tmp_path)
    (tmp_path / "file").write_text("mine")
    with pytest.raises(DirectoryRefused, match="cannot be used"):
        opened(gateway, tmp_path / "file")
    with Producer(gateway.url) as plain:
        with pytest.raises(UsageError, match="has no spool"):
            _ = plain.spool
        with pytest.raises(UsageError, match="goes through no spool"):
            plain.send("t", b"x").spooled(1)


def test_a_newer_format_is_left_alone(gateway: FakeGateway, spool: Path) -> None:

    with opened(gateway, spool, delivery_timeout=30):
        pass
    state = json.loads((spool / "spool.json").read_bytes().split(b"\n")[0])
    data = json.dumps({**state, "format": 2}).encode()
    (spool / "spool.json").write_bytes(b"%s\n%08x\n" % (data, crc32c(data)))
    with pytest.raises(FormatError, match="format 2 of a spool is not known"):
        opened(gateway, spool)


# -- the disk


class Trouble(Storage):
    """A disk that fails when it is told to."""

    writes: int | None = None  # the error of writes
    syncs: int | None = None

    def write(self, fd: int, parts: Sequence[Any], at: int) -> None:
        if Trouble.writes:
            super().write(fd, [b"".join(bytes(part) for part in parts)[:10]], at)
            raise OSError(Trouble.writes, os.strerror(Trouble.writes))
        super().write(fd, parts, at)

    def sync(self, fd: int) -> None:
        if Trouble.syncs:
            raise OSError(Trouble.syncs, os.strerror(Trouble.syncs))
        super().sync(fd)


@pytest.fixture
def trouble(monkeypatch: pytest.MonkeyPatch) -> Iterator[type[Trouble]]:
    monkeypatch.setattr("gateway.client.spool.store.Storage", Trouble)
    monkeypatch.setattr(limits, "SPOOL_RETRY_US", 10_000)
    yield Trouble
    Trouble.writes = Trouble.syncs = None


def test_a_full_disk_holds_records_up_and_loses_none(gateway: FakeGateway, spool: Path, trouble: type[Trouble]) -> None:
    with opened(gateway, spool, delivery_timeout=30, on_full="raise", batch_bytes=1024) as p:
        p.send("t", b"first").result(30)
        trouble.writes = errno.ENOSPC
        sent = [b"first"]

        def fill() -> None:
            while True:
                value = b"%d" % len(sent)
                p.send("t", value.ljust(100))
                sent.append(value)

        with pytest.raises(BufferFull, match="No space left on device"):
            fill()
        late = p._feed.closed[0]
        with pytest.raises(TimeoutError, match="No space left"):
            p._feed.await_spooled(late, 0.01)  # type: ignore[attr-defined]
        trouble.writes = None
    assert [(value or b"").strip() for value in committed(gateway)] == sent


def test_a_disk_that_stays_full_to_the_end_is_told(gateway: FakeGateway, spool: Path, trouble: type[Trouble]) -> None:
    p = opened(gateway, spool)
    p.send("t", b"first").result(30)
    trouble.writes = errno.ENOSPC
    receipt = p.send("t", b"second")
    p.close()
    with pytest.raises(DiskFull, match="No space left"):
        receipt.result(0)
    trouble.writes = None
    with opened(gateway, spool, delivery_timeout=30) as p:
        p.send("t", b"third")
    assert committed(gateway) == [b"first", b"third"]


@pytest.mark.parametrize("which", ["writes", "syncs"])
def test_a_disk_that_fails_ends_the_producer(
    which: str, gateway: FakeGateway, spool: Path, trouble: type[Trouble], caplog: pytest.LogCaptureFixture
) -> None:
    p = opened(gateway, spool)
    p.send("t", b"first").result(30)
    setattr(trouble, which, errno.EIO)
    receipt = p.send("t", b"second")
    for ask in (receipt.spooled, receipt.result):
        with pytest.raises(DiskFailed, match=r"seg cannot be written: Input/output error"):
            ask(30)
    with pytest.raises(DiskFailed):
        p.send("t", b"third")
    p.close()
    setattr(trouble, which, None)
    with opened(gateway, spool, delivery_timeout=30) as p:
        p.send("t", b"fourth")
    assert committed(gateway) in ([b"first", b"fourth"], [b"first", b"second", b"fourth"])


def test_a_full_spool_holds_records_up(gateway: FakeGateway, spool: Path) -> None:
    gateway.stop()
    count = 0
    with opened(
        gateway, spool, delivery_timeout=30, on_full="raise", spool_bytes=limits.SPOOL_BYTES_MIN, buffer_bytes=1 << 22
    ) as p:

        def fill() -> None:
            nonlocal count
            while True:
                p.send("t", b"%8d" % count * 4096).spooled(30)
                count += 1

        with pytest.raises(BufferFull, match=r"spool_bytes=16777216.*enlarge spool_bytes"):
            fill()
        assert count > 400
        assert p.spool.used_bytes <= limits.SPOOL_BYTES_MIN
        assert len([name for name in files(spool) if name.endswith(".seg")]) > 4
        gateway.start()
        until(lambda: not p.spool.records)
        p.send("t", b"%8d" % count * 4096)
    assert [int((value or b"")[:8]) for value in committed(gateway)] == list(range(count + 1))


def test_a_sender_waits_for_room_in_the_spool(gateway: FakeGateway, spool: Path) -> None:
    gateway.stop()
    with opened(gateway, spool, delivery_timeout=30, spool_bytes=limits.SPOOL_BYTES_MIN, buffer_bytes=1 << 22) as p:
        feed: Any = p._feed
        for count in range(600):
            if count == 400:
                gateway.start()
            p.send("t", b"%8d" % count * 4096)
        assert feed.spooled().used_bytes <= limits.SPOOL_BYTES_MIN
    assert [int((value or b"")[:8]) for value in committed(gateway)] == list(range(600))


# -- damage


def outage(gateway: FakeGateway, spool: Path, runs: int = 1) -> list[Path]:
    """Records in so many runs' segments, ten in each, every one in a group of its own; the segments."""
    gateway.stop()
    for run in range(runs):
        with opened(gateway, spool) as p:
            for number in range(10):
                p.send("t", b"%d" % (10 * run + number)).spooled(30)
    gateway.start()
    return [path for path in sorted(spool.glob("*.seg")) if path.stat().st_size > 512]


def spoil(path: Path, at: int) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= 0xFF
    path.write_bytes(data)


@pytest.mark.parametrize("at", [5, 600, 900])
def test_damage_is_told_and_nothing_behind_it_is_sent(at: int, gateway: FakeGateway, spool: Path) -> None:
    first, _ = outage(gateway, spool, runs=2)
    spoil(first, at)

    def go_on() -> None:
        with opened(gateway, spool, delivery_timeout=30) as p:
            p.resume(30)
            p.send("t", b"new").result(30)

    with pytest.raises(Damaged, match=r"00000001.seg cannot be read.*tutti spool"):
        go_on()
    assert committed(gateway) == [b"%d" % number for number in range(len(gateway.log.records))]
    assert len(gateway.log.records) < 10


def test_a_lost_segment_is_told(gateway: FakeGateway, spool: Path) -> None:
    _, second, _ = outage(gateway, spool, runs=3)
    second.unlink()
    with pytest.raises(Damaged, match=r"has lost segment .*00000003.seg"):
        opened(gateway, spool)


def test_a_block_that_a_crash_tore_is_cut_off_and_one_that_was_synced_is_not(gateway: FakeGateway, spool: Path) -> None:
    (segment,) = outage(gateway, spool)
    for path in spool.glob("*.seg"):
        if path != segment:
            path.unlink()  # it says how far the one before is valid, as a crash does not
    whole = segment.read_bytes()
    segment.write_bytes(whole[:-3])
    with opened(gateway, spool, delivery_timeout=30) as p:
        p.send("t", b"new")
    assert committed(gateway) == [*(b"%d" % number for number in range(9)), b"new"]


def test_damage_in_the_middle_of_the_last_segment_is_no_torn_end(gateway: FakeGateway, spool: Path) -> None:
    (segment,) = outage(gateway, spool)
    for path in spool.glob("*.seg"):
        if path != segment:
            path.unlink()
    spoil(segment, 512 + (segment.stat().st_size - 512) * 3 // 20)
    with pytest.raises(Damaged, match=r"is damaged behind record 1 of it.*what follows had been on the disk"):
        opened(gateway, spool)


# -- the process


def test_a_forked_child_lets_go_of_the_spool(gateway: FakeGateway, spool: Path) -> None:
    with opened(gateway, spool, delivery_timeout=30) as p:
        p.send("t", b"0").result(30)
        reading, writing = os.pipe()
        pid = os.fork()
        if not pid:
            try:
                p.send("t", b"1")
            except UsageError as error:
                os.write(writing, str(error).encode())
            finally:
                os._exit(0)
        os.waitpid(pid, 0)
        assert b"cannot be used in process" in os.read(reading, 1000)
        os.close(reading)
        os.close(writing)
        p.send("t", b"2")
    assert committed(gateway) == [b"0", b"2"]


def test_an_error_in_the_block_leaves_the_records_in_the_spool(
    gateway: FakeGateway, spool: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    caplog.set_level(logging.WARNING)
    monkeypatch.setattr(limits, "EXIT_FLUSH_US", 1000)
    gateway.stop()

    def fail() -> None:
        with opened(gateway, spool, delivery_timeout=30) as p:
            p.send("t", b"0")
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert "1 records of producer 'jfk' stay in spool" in caplog.text
    gateway.start()
    with opened(gateway, spool, delivery_timeout=30):
        pass
    assert committed(gateway) == [b"0"]
