"""Tests of docs/how-to/analysis.md: its programs run as printed, on a real gateway, a file of `tutti replay` and an archive."""

from __future__ import annotations

import contextlib
import io
import re
import shutil
import tomllib
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from tests.integration.archive.archiver import ArchiverProcess
from tests.support.commands import tutti
from tests.support.gateway_process import GatewayProcess
from tests.support.waiting import wait_until
from tutti import Producer, Reader
from tutti.data.frames.columns import COLUMNS, schema_of

ROOT = Path(__file__).resolve().parents[3]
PAGE = ROOT / "docs/how-to/analysis.md"
ADDRESS = "tutti://127.0.0.1:7400"
ORDERS = 12


def run(program: str, gateway: GatewayProcess) -> tuple[str, dict[str, Any]]:
    """Run a program of the page; return its output and its variables."""
    printed, names = io.StringIO(), {"__name__": "__main__"}
    with contextlib.redirect_stdout(printed):
        exec(compile(program.replace(ADDRESS, gateway.url), str(PAGE), "exec"), names)  # noqa: S102 - our own page
    return printed.getvalue(), names


@pytest.mark.slow
def test_the_programs_of_the_page_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    programs = re.findall(r"```python\n(.*?)```", PAGE.read_text("utf-8"), flags=re.DOTALL)
    tables, sql, replayed, archived, progress = programs
    commands = re.findall(r"^    tutti (.*)$", PAGE.read_text("utf-8"), flags=re.MULTILINE)
    shutil.copytree(ROOT / "examples", tmp_path / "examples")
    with GatewayProcess(tmp_path, extra="[timers]\ntick_ms = 200\n") as gateway:
        for command in commands:
            done = tutti(*command.replace(ADDRESS, gateway.url).split(), url=gateway.url)
            assert done.code == 0, done.err
        printed, names = run(tables, gateway)
        assert printed == f"{ORDERS} {ORDERS} 5\n"
        assert names["table"].schema.equals(schema_of(["offset", "timestamp", "value"]))
        assert "coffee" in run(sql, gateway)[0]
        assert re.search(r"orders +│ +12 ", run(replayed, gateway)[0])
        archive(gateway, tmp_path)
        shown = run(archived, gateway)[0]
        assert [f'"order": {number}' in shown for number in (1, 2, 3, 4)] == [True, True, True, False]
        printed, names = run(progress, gateway)
        with Reader(gateway.url, start=0) as reader:
            assert names["table"].equals(reader.to_arrow())
        assert names["bar"].n == names["bar"].total == names["table"].num_rows
        assert gateway.stop() == 0
        live = names["table"]
        assert gateway.data.is_dir()
    for source in ({"path": gateway.data}, {"path": gateway.data, "archive": "archive/ingest"}):
        with Reader(start=0, **source) as reader:
            assert reader.to_arrow().equals(live)
    with Reader(start=0, archive="archive/ingest") as reader:
        table = reader.to_arrow()
    assert table.schema.equals(schema_of(COLUMNS))
    assert table.equals(live.slice(0, table.num_rows))
    assert table.num_rows >= ORDERS
    with Reader(archive="archive/ingest", start=5, end=5) as reader:
        assert reader.to_arrow().equals(pa.Table.from_batches([], schema_of(COLUMNS)))


def archive(gateway: GatewayProcess, directory: Path) -> None:
    """Archive the orders in the directory that `tutti config init --kind archive` sets.

    More records follow them, because the archiver writes only closed ranges.
    """
    where = tomllib.loads((ROOT / "conf/archive/archive.toml").read_text())["archive"]
    archiver = ArchiverProcess(directory / "archive.toml", gateway.url, str(directory / where))

    def archived() -> bool:
        with Producer(gateway.url) as producer:
            producer.send("later", b"x").result(30)
        return bool(archiver.once()["end"] >= ORDERS)

    wait_until(archived)
