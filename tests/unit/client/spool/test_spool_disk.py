"""Tests of a spool on a full or failing disk, with corruption, wrong options, forks, and the end of the process."""

from __future__ import annotations

import errno
import json
import logging
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.unit.client.fake_gateway import FakeGateway, until
from tests.unit.client.spool.spools import committed, files, opened
from tutti import limits
from tutti.data.frames.frame import crc32c
from tutti.errors import BufferFull, Damaged, DirectoryRefused, DiskFailed, DiskFull, FormatError, UsageError, WrongDirectory
from tutti.log.files.storage import Storage
from tutti.producer import Producer

# -- mistakes


def test_impossible_options_are_reported(gateway: FakeGateway, spool: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="needs a name"):
        Producer(gateway.url, spool=spool)
    with pytest.raises(UsageError, match="spool_bytes=5 is too small"):
        opened(gateway, spool, spool_bytes=5)
    for wrong in ("", 5):
        with pytest.raises(UsageError, match="path of a directory"):
            Producer(gateway.url, producer="jfk", spool=wrong)  # type: ignore[arg-type]  # that is the mistake
    with opened(gateway, spool, delivery_timeout=30) as p:
        with pytest.raises(DirectoryRefused, match=f"in use by process {os.getpid()}"):
            opened(gateway, spool)
        with pytest.raises(UsageError, match="sends no unordered records"):
            p.send("t", b"x", ordering="unordered")
    with pytest.raises(WrongDirectory, match="belongs to producer 'jfk', not to 'lga'"):
        Producer(gateway.url, producer="lga", spool=spool)
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(WrongDirectory, match=r"not a spool: it has 'notes.txt'"):
        opened(gateway, tmp_path)
    (tmp_path / "file").write_text("mine")
    for path in (tmp_path / "file", tmp_path / "file" / "below", Path("/proc/spool")):
        with pytest.raises(WrongDirectory, match="cannot be used"):
            opened(gateway, path)
    with Producer(gateway.url) as plain:
        with pytest.raises(UsageError, match="has no spool"):
            _ = plain.spool
        with pytest.raises(UsageError, match="has no spool"):
            plain.send("t", b"x").spooled(1)


def test_a_newer_format_is_left_alone(gateway: FakeGateway, spool: Path) -> None:

    with opened(gateway, spool, delivery_timeout=30):
        pass
    state = json.loads((spool / "spool.json").read_bytes().split(b"\n")[0])
    data = json.dumps({**state, "format": 2}).encode()
    (spool / "spool.json").write_bytes(b"%s\n%08x\n" % (data, crc32c(data)))
    with pytest.raises(FormatError, match="format 2 of a spool is unknown"):
        opened(gateway, spool)


# -- the disk


class Trouble(Storage):
    """A disk that fails on demand."""

    writes: int | None = None  # the error of writes
    syncs: int | None = None

    def write(self, fd: int, parts: Sequence[Any], at: int) -> None:
        if error := Trouble.writes:  # once: the test changes it in another thread
            super().write(fd, [b"".join(bytes(part) for part in parts)[:10]], at)
            raise OSError(error, os.strerror(error))
        super().write(fd, parts, at)

    def sync(self, fd: int) -> None:
        if error := Trouble.syncs:
            raise OSError(error, os.strerror(error))
        super().sync(fd)


@pytest.fixture
def trouble(monkeypatch: pytest.MonkeyPatch) -> Iterator[type[Trouble]]:
    monkeypatch.setattr("tutti.spool.store.Storage", Trouble)
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
        stage: Any = p._spool
        late = p._accumulator.queue[0]
        with pytest.raises(TimeoutError, match="No space left"):
            stage.await_spooled(late, 0.01)
        trouble.writes = None
    assert [(value or b"").strip() for value in committed(gateway)] == sent


def test_a_disk_that_stays_full_to_the_end_is_reported(gateway: FakeGateway, spool: Path, trouble: type[Trouble]) -> None:
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


@pytest.mark.parametrize(
    ("which", "number"), [("writes", errno.EIO), ("syncs", errno.EIO), ("writes", errno.EFBIG), ("syncs", errno.ENOSPC)]
)
def test_a_disk_that_fails_ends_the_producer(
    which: str, number: int, gateway: FakeGateway, spool: Path, trouble: type[Trouble], caplog: pytest.LogCaptureFixture
) -> None:
    p = opened(gateway, spool)
    p.send("t", b"first").result(30)
    setattr(trouble, which, number)
    receipt = p.send("t", b"second")
    for ask in (receipt.spooled, receipt.result):
        with pytest.raises(DiskFailed, match=rf"seg cannot be written: {os.strerror(number)}"):
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


def test_batches_with_a_callback_are_bounded(gateway: FakeGateway, spool: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Proves it for those that wait on the disk: their callbacks stay in memory, whatever free space the spool has."""
    monkeypatch.setattr(limits, "SPOOL_WATCHED_MAX", 2)
    gateway.stop()
    with opened(gateway, spool, delivery_timeout=30, on_full="raise") as p:
        for _ in range(2):
            p.send("t", b"x", on_delivery=lambda _error, _receipt: None).spooled(30)
        with pytest.raises(BufferFull, match="2 batches with callbacks have no outcome yet, which is the limit"):
            p.send("t", b"x")
        gateway.start()
        until(lambda: not p.spool.records)
        p.send("t", b"x").result(30)


@pytest.mark.parametrize("before", [True, False])
def test_batches_with_a_future_are_bounded(
    gateway: FakeGateway, spool: Path, monkeypatch: pytest.MonkeyPatch, before: bool
) -> None:
    """Proves it for callbacks of a receipt that come before or after the disk has the record, even if the receipt is dropped."""
    monkeypatch.setattr(limits, "SPOOL_WATCHED_MAX", 3)
    outcomes: list[int] = []
    gateway.stop()
    with opened(gateway, spool, delivery_timeout=30, on_full="raise", linger=0.2) as p:
        for _ in range(3):
            receipt = p.send("t", b"x")
            if not before:
                receipt.spooled(30)
            receipt.add_done_callback(lambda done: outcomes.append(done.result()))
            receipt.add_done_callback(lambda done: outcomes.append(done.result()))
            receipt.spooled(30)
            del receipt
        with pytest.raises(BufferFull, match="3 batches with callbacks have no outcome yet, which is the limit"):
            p.send("t", b"x")
        gateway.start()
        until(lambda: not p.spool.records)
        p.send("t", b"x").result(30)
    assert outcomes == [0, 0, 1, 1, 2, 2]


def test_receipts_without_a_callback_have_no_bound(gateway: FakeGateway, spool: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "SPOOL_WATCHED_MAX", 1)
    gateway.stop()
    with opened(gateway, spool, delivery_timeout=30, on_full="raise") as p:
        receipts = [p.send("t", b"x") for _ in range(3)]
        for receipt in receipts:
            receipt.spooled(30)
        receipts.append(p.send("t", b"x"))
        gateway.start()
        assert [receipt.result(30) for receipt in receipts] == [0, 1, 2, 3]


def test_dead_lettered_records_count_until_they_are_deleted(gateway: FakeGateway, spool: Path) -> None:
    """Proves that refused batches count against the spool's limit, also after a restart, until an operator deletes them."""
    with opened(gateway, spool) as p:
        p.send("t", b"x").spooled(30)
        empty = p.spool.used_bytes
    aside = spool / "refused"
    aside.mkdir(exist_ok=True)
    (aside / "00000001-000000000001.arrow").write_bytes(bytes(1_000_000))
    with opened(gateway, spool) as p:
        assert p.spool.used_bytes >= 1_000_000
        assert p.spool.used_bytes - 1_000_000 <= empty + 4 * limits.KIB


def test_a_sender_waits_for_free_space_in_the_spool(gateway: FakeGateway, spool: Path) -> None:
    gateway.stop()
    with opened(gateway, spool, delivery_timeout=30, spool_bytes=limits.SPOOL_BYTES_MIN, buffer_bytes=1 << 22) as p:
        for count in range(600):
            if count == 400:
                gateway.start()
            p.send("t", b"%8d" % count * 4096)
        assert p.spool.used_bytes <= limits.SPOOL_BYTES_MIN
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
def test_corruption_is_reported_and_nothing_after_it_is_sent(at: int, gateway: FakeGateway, spool: Path) -> None:
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


def test_a_lost_segment_is_reported(gateway: FakeGateway, spool: Path) -> None:
    _, second, _ = outage(gateway, spool, runs=3)
    second.unlink()
    with pytest.raises(Damaged, match=r"has lost segment .*00000003.seg"):
        opened(gateway, spool)


def test_a_block_torn_by_a_crash_is_truncated_and_a_synced_one_is_not(gateway: FakeGateway, spool: Path) -> None:
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
    with pytest.raises(Damaged, match=r"is corrupt after record 1 of it.*the bytes after it were durable"):
        opened(gateway, spool)


# -- the process


def test_a_forked_child_releases_the_spool(gateway: FakeGateway, spool: Path) -> None:
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
    assert "of producer 'jfk' keeps 1 record: " in caplog.text
    gateway.start()
    with opened(gateway, spool, delivery_timeout=30):
        pass
    assert committed(gateway) == [b"0"]


def test_a_program_that_ends_without_closing_loses_nothing_that_it_sent(gateway: FakeGateway, spool: Path) -> None:
    gateway.stop()
    program = f"""
from tutti.producer import Producer
from tutti_gateway.core import limits
limits.EXIT_FLUSH_US = 100_000
p = Producer({gateway.url!r}, producer="jfk", spool={str(spool)!r})
for number in range(100):
    p.send("t", b"%d" % number)
"""
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    assert "of producer 'jfk' keeps 100 records: " in ended.stderr
    gateway.start()
    with opened(gateway, spool, delivery_timeout=30):
        pass
    assert committed(gateway) == [b"%d" % number for number in range(100)]


def test_an_unreferenced_producer_delivers_and_releases_the_spool(gateway: FakeGateway, spool: Path) -> None:
    opened(gateway, spool).send("t", b"0")
    until(lambda: committed(gateway) == [b"0"])

    def again() -> Producer | None:
        try:
            return opened(gateway, spool, delivery_timeout=30)
        except DirectoryRefused:
            return None  # its threads end in a moment

    with until(again) as p:
        p.send("t", b"1")
    assert committed(gateway) == [b"0", b"1"]
