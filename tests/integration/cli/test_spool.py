"""Tests of `tutti spool` on intact and corrupt spools, without a gateway."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.support.commands import tutti
from tests.support.ports import free_base
from tests.unit.client.fake_gateway import FakeGateway
from tutti import Producer
from tutti.errors import Refused
from tutti.spool.block_format import HEAD_BYTES, Block
from tutti.spool.inspect import read_state, scan_blocks
from tutti.spool.store import SpoolStore


@pytest.fixture
def spool(tmp_path: Path) -> Path:
    """Two runs of four records, each record in a block of its own, and nothing of them committed."""
    url = f"tutti://127.0.0.1:{free_base()}"
    for run in range(2):
        with Producer(url, producer="jfk", spool=tmp_path / "spool", delivery_timeout=0.01) as p:
            for number in range(4):
                p.send("flights", b"%d" % (4 * run + number), key=b"\xff", headers=[("h", b"1")]).spooled(30)
    return tmp_path / "spool"


def segments(spool: Path) -> list[Path]:
    return [path for path in sorted(spool.glob("*.seg")) if path.stat().st_size > HEAD_BYTES]


def values(lines: list[str]) -> list[str]:
    return [json.loads(line)["value"] for line in lines]


def test_a_spool_is_shown(spool: Path) -> None:
    done = tutti("spool", str(spool), "--json")
    assert done.code == 0
    assert done.json == done.json | {"producer": "jfk", "log": "", "records": 8, "refused": 0, "damage": []}
    assert "damage    none" in tutti("spool", str(spool)).out
    lines = tutti("spool", str(spool), "--records").lines
    assert values(lines) == [str(number) for number in range(8)]
    first = json.loads(lines[0])
    assert first == first | {"segment": 1, "record": 1, "topic": "flights", "key_base64": "/w=="}
    assert first["headers"] == [{"key": "h", "value": "1"}]
    assert tutti("spool", str(spool), "--refused").out == ""


def test_readable_frames_around_damage_are_shown(spool: Path) -> None:
    first, second = segments(spool)
    data = bytearray(first.read_bytes())
    one = (len(data) - HEAD_BYTES) // 4
    data[HEAD_BYTES + one + one // 2] ^= 1
    first.write_bytes(data)
    second.write_bytes(second.read_bytes()[:-5])
    done = tutti("spool", str(spool), "--records")
    assert done.code == 4
    assert values(done.lines) == ["0", "2", "3", "4", "5", "6"]
    assert f"corrupt in 2 places, first in 00000001.seg from byte {HEAD_BYTES + one}" in done.err
    first.unlink()
    done = tutti("spool", str(spool), "--json")
    assert done.code == 4
    assert [one["why"] for one in done.json["damage"]] == [
        "the file is not there",
        "the file ends in the middle of a record",
    ]


def test_quarantined_records_are_shown_with_the_reason(spool: Path) -> None:
    block = next(iter(scan_blocks(str(spool), read_state(str(spool)))))
    assert isinstance(block, Block)
    store = SpoolStore(str(spool), "jfk", 1 << 20)
    store.refuse(block, Refused("the log does not want it"))
    store.note_aside(block.position, ())
    store.close()
    (line,) = tutti("spool", str(spool), "--refused").lines
    assert json.loads(line) == json.loads(line) | {"reason": "the log does not want it", "topic": "flights", "value": "0"}
    assert tutti("spool", str(spool), "--json").json["refused"] == 1
    assert len(tutti("spool", str(spool), "--records").lines) == 7


def test_produce_reads_a_pipe_into_a_spool_and_a_later_run_sends_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tutti_gateway.cli.records.sender.SPOOL_DELIVERY_S", 0.1)
    command = ["produce", "--topic", "t", "--producer", "jfk", "--spool", str(tmp_path / "spool"), "--json", "--url"]
    with FakeGateway() as gateway:
        gateway.stop()
        for run in range(2):
            done = tutti(*command, gateway.url, given=b"".join(b"%d\n" % (100 * run + number) for number in range(100)))
            assert done.code == 0
            wanted = {"records": 100, "safe": 100, "in_spool": 100 * (run + 1), "first": None, "complete": True}
            assert done.json == done.json | wanted
        broken = tutti(*command, gateway.url, "--format", "json", given=b'{"a": 1}\nno\n')
        assert broken.code == 1
        assert broken.json == broken.json | {"records": 0, "safe": 0, "in_spool": 200, "complete": False}
        monkeypatch.setattr("tutti_gateway.cli.records.sender.SPOOL_DELIVERY_S", 30)
        gateway.start()
        done = tutti(*command, gateway.url)
        assert done.json == done.json | {"records": 0, "in_spool": 0}
        done = tutti(*command[:-2], "--url", gateway.url, given=b"last\n")
        assert done.out == "first offset 200, last offset 200\n"
        assert "1 record read for t in" in done.err
        assert "all are committed" in done.err
        assert gateway.log.values() == [*(b"%d" % number for number in range(200)), b"last"]
    done = tutti("produce", "--topic", "t", "--spool", str(tmp_path / "spool"), "--url", gateway.url)
    assert done.code == 2
    assert "needs a --producer" in done.err


def test_mistakes(spool: Path, tmp_path: Path) -> None:
    assert tutti("spool", str(tmp_path)).code == 2
    assert "is not a spool: it has no spool.json" in tutti("spool", str(tmp_path / "none")).err
    assert tutti("spool", str(spool), "--records", "--refused").code == 2
    (spool / "spool.json").write_bytes(b"{}")
    done = tutti("spool", str(spool))
    assert done.code == 4
    assert "spool.json fails its CRC" in done.err
