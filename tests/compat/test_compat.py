"""Proves that what earlier releases wrote opens, verifies, reads and serves as it did, and that what they said is still understood.

When a test fails because a version or a message is new: `python -m tests.compat.make`, and commit what it adds. When one fails
because something old is not understood any more: that is a release which cannot be upgraded to; give the form a new version, and
read the old one too.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from tests.compat import make
from tests.compat.archived import ARCHIVES as ARCHIVES_MADE
from tests.compat.archived import archive_facts
from tests.compat.facts import lane_facts, only, read_facts, start_facts
from tests.compat.forms import versions
from tests.compat.logs import LOGS
from tests.compat.make import ARCHIVED, SAID, VERSIONS, current, folders, lacking, unpack
from tests.compat.say import heard
from tests.support.gateway_process import GatewayProcess
from tests.unit.log.history import opened
from tutti import Producer, Reader
from tutti.data import log_state as state
from tutti.data.frames.bodies import TickBody, encode_body
from tutti.data.frames.frame import Frame, Kind
from tutti_gateway.cli.main import main
from tutti_gateway.log.tools.digest import digest
from tutti_gateway.log.tools.verify import verify

ARCHIVES = [
    pytest.param(path, id=f"{path.parent.name}/{path.name.split('.')[0]}")
    for found in folders()
    for path in sorted(found.glob("*.tar.xz"))
    if not path.name.endswith(ARCHIVED)
]
OF_ARCHIVES = [
    pytest.param(path, id=f"{path.parent.name}/{path.name}") for found in folders() for path in sorted(found.glob(f"*{ARCHIVED}"))
]
MESSAGES = [
    pytest.param(name, told, id=f"{found.name}/{name}")
    for found in folders()
    for name, told in json.loads((found / SAID).read_text()).items()
]
BYTES_MAX = 200_000


def facts(archive: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(archive.with_name(archive.name.replace(".tar.xz", ".json")).read_text())
    return found


def test_every_form_and_message_of_this_release_has_its_fixtures() -> None:
    assert lacking() == [], "run python -m tests.compat.make"
    of_logs = {f"{name}.tar.xz" for name in LOGS}
    assert {path.name for path in current().glob("*.tar.xz")} == of_logs | {f"{name}{ARCHIVED}" for name in ARCHIVES_MADE}


def test_a_form_with_a_new_version_asks_for_fixtures(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(state, "SNAPSHOT_VERSION", state.SNAPSHOT_VERSION + 1)
    assert current() not in folders()
    assert [name.partition(" ")[0] for name in lacking()] == ["folder"]


def test_a_missing_file_a_missing_message_and_a_missing_version_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    copy = shutil.copytree(current(), tmp_path / current().name)
    monkeypatch.setattr(make, "HERE", tmp_path)
    assert lacking() == []
    (copy / "alone.tar.xz").unlink()
    kept = json.loads((copy / SAID).read_text())
    del kept["client Bye"]
    (copy / SAID).write_text(json.dumps(kept))
    (copy / VERSIONS).write_text(json.dumps({"frame": versions()["frame"]}))
    folder = copy.name
    assert lacking() == [
        f"{folder}/alone.tar.xz",
        f"version of each form in {folder}/{VERSIONS}",
        f"message 'client Bye' in {folder}/{SAID}",
    ]


def test_fixtures_are_small() -> None:
    assert all(path.stat().st_size < BYTES_MAX for found in folders() for path in found.iterdir())


@pytest.mark.parametrize("archive", ARCHIVES)
def test_a_log_reads_and_verifies_as_it_did(archive: Path, tmp_path: Path) -> None:
    then = facts(archive)["read"]
    assert only(read_facts(unpack(archive, tmp_path / "data")), then) == then
    assert then["damage"] == []


@pytest.mark.parametrize("archive", ARCHIVES)
def test_a_start_finds_what_it_found(archive: Path, tmp_path: Path) -> None:
    then = facts(archive)["start"]
    assert only(start_facts(unpack(archive, tmp_path / "data")), then) == then


@pytest.mark.parametrize("archive", ARCHIVES)
def test_a_start_finds_the_lanes_that_it_found(archive: Path, tmp_path: Path) -> None:
    then = facts(archive).get("lanes", {})  # a release without lanes wrote none
    assert only(lane_facts(unpack(archive, tmp_path / "data")), then) == then


@pytest.mark.parametrize("archive", ARCHIVES)
def test_a_log_exports_to_the_same_file(archive: Path, tmp_path: Path) -> None:
    then = facts(archive)["read"]
    data, out = unpack(archive, tmp_path / "data"), tmp_path / "out.parquet"
    (_, end), start = then["frontier"], then["start"]
    assert main(["replay", "--path", str(data), "--start", str(start), "--end", str(end), "--out", str(out)]) == 0
    assert pq.read_table(out).column("offset").to_pylist() == list(range(start, end))


@pytest.mark.parametrize("archive", ARCHIVES)
def test_a_log_continues_at_its_end(archive: Path, tmp_path: Path) -> None:
    then, data = facts(archive), unpack(archive, tmp_path / "data")
    writer, recovered, close = opened(data)
    state, tail = recovered.state, recovered.tail
    last, chain = (tail[-1].position, tail[-1].header_crc) if tail else (state.position, state.chain)
    frame = Frame(Kind.TICK, encode_body(TickBody(state.tick + 1, state.tick_time + 1)))
    frame.stamp(recovered.scalars.accepted, last + 1, chain)
    writer.append([frame])
    writer.sync()
    close()
    _, recovered, close = opened(data)
    close()
    assert [one.position for one in recovered.tail] == [one[0] for one in then["start"]["tail"]] + [last + 1]
    found = read_facts(data)
    assert (found["end"], found["digest"], found["damage"]) == (last + 1, then["read"]["digest"], [])


@pytest.mark.parametrize("archive", OF_ARCHIVES)
def test_an_archive_verifies_and_reads_as_it_did(archive: Path, tmp_path: Path) -> None:
    then = facts(archive)
    assert only(archive_facts(unpack(archive, tmp_path / "archive")), then) == then
    assert (then["wrong"], then["records"]) == ([], then["end"])
    out = tmp_path / "out.parquet"
    assert (
        main(["replay", "--archive", str(tmp_path / "archive"), "--start", "0", "--end", str(then["end"]), "--out", str(out)]) == 0
    )
    assert pq.read_table(out).column("offset").to_pylist() == list(range(then["end"]))


def voters(archive: Path) -> int:
    return len(facts(archive)["start"]["state"]["roster"])


@pytest.mark.parametrize("archive", [one for one in ARCHIVES if voters(one.values[0]) == 1])  # type: ignore[arg-type] # it is a path
def test_a_gateway_serves_and_continues_an_old_log(archive: Path, tmp_path: Path) -> None:
    then = facts(archive)["read"]
    data = unpack(archive, tmp_path / "g1")
    start, (_, end) = then["start"], then["frontier"]
    with GatewayProcess(tmp_path) as gateway:
        with Producer(gateway.url, producer="today") as producer:
            assert producer.send("topic", b"today").result(20) == end
        with Reader(gateway.url, start=start) as reader:
            offsets = [offset for batch in reader for offset in batch.column("offset").to_pylist()]
        assert offsets == list(range(start, end + 1))
        assert gateway.stop() == 0
    assert not verify(data).damage
    assert digest(data, start, end).sha256 == then["digest"]


@pytest.mark.parametrize(("name", "told"), MESSAGES)
def test_old_messages_decode_to_the_same_values(name: str, told: dict[str, Any]) -> None:
    assert only(heard(name, told["parts"]), told["says"]) == told["says"]
