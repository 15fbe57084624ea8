"""Tests of the programs in docs/how-to/clients.md: they run as printed, against a real gateway."""

from __future__ import annotations

import contextlib
import io
import re
from pathlib import Path

import pytest

from tests.support.gateway_process import GatewayProcess
from tutti import Reader

PAGE = Path(__file__).resolve().parents[3] / "docs/how-to/clients.md"


def test_the_programs_of_the_page_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    programs = re.findall(r"```python\n(.*?)```", PAGE.read_text("utf-8"), flags=re.DOTALL)
    assert len(programs) == 9
    said = io.StringIO()
    with GatewayProcess(tmp_path) as gateway:
        for program in [*programs, programs[5]]:
            text = program.replace("tutti://127.0.0.1:7400", gateway.url)
            assert text != program
            with contextlib.redirect_stdout(said):
                exec(compile(text, str(PAGE), "exec"), {})  # noqa: S102 - our own page
        with Reader(gateway.url, topics=["copy"]) as r:
            assert [int(record.value or b"") for record in r.records()] == list(range(1000))
    lines = said.getvalue().splitlines()
    assert lines[0] == "0"
    assert "offsets 1 to 3" in lines
    assert "2 5" in lines
