"""Tests of `tutti spool` with files of dead-lettered records: unreadable parts count as corruption, and the rest is shown."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pytest

from tutti.spool.store import REFUSED, SpoolStore
from tutti_gateway.cli.main import main


@pytest.fixture
def spool(tmp_path: Path) -> str:
    """A spool with two files of refused records, the first of which is damaged."""
    place = tmp_path / "spool"
    SpoolStore(str(place), "p", 1 << 20).close()
    (place / REFUSED).mkdir(exist_ok=True)
    (place / REFUSED / "a.arrow").write_bytes(b"no Arrow stream")
    batch = pa.record_batch([pa.array([None], pa.binary()), pa.array([b"v"])], names=["key", "value"])
    schema = batch.schema.with_metadata({"reason": "too old", "topic": "t"})
    with pa.ipc.new_stream(str(place / REFUSED / "b.arrow"), schema) as stream:
        stream.write_batch(batch.replace_schema_metadata(schema.metadata))
    return str(place)


def test_a_file_of_refused_records_that_cannot_be_read_is_damage(spool: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["spool", spool, "--json"]) == 4
    out, error = capsys.readouterr()
    told = json.loads(out)
    assert told["refused"] == 1
    assert [one["file"] for one in told["damage"]] == ["refused/a.arrow"]
    assert error.startswith(f"error: {spool} is corrupt in 1 place, first in refused/a.arrow")


def test_the_refused_records_that_can_be_read_are_shown(spool: str, capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    assert main(["spool", spool, "--refused"]) == 4
    (line,) = capfdbinary.readouterr().out.splitlines()
    assert json.loads(line).items() >= {"reason": "too old", "topic": "t", "value": "v"}.items()
