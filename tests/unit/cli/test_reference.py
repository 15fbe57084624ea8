"""Tests that docs/reference/cli.md, config.md, api.md and metrics.md match the code."""

from __future__ import annotations

from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType

import pytest

import tutti
from tutti_gateway.cli.commands import COMMANDS
from tutti_gateway.cli.reference import pages
from tutti_gateway.cli.reference.api import api_page
from tutti_gateway.cli.reference.metrics import metrics_page


def _api_page() -> str:
    return api_page(tutti)


@pytest.mark.parametrize(
    ("name", "page"),
    [
        ("cli.md", pages.cli_page),
        ("config.md", pages.config_page),
        ("api.md", _api_page),
        ("metrics.md", metrics_page),
    ],
)
def test_the_page_is_up_to_date(name: str, page: Callable[[], str]) -> None:
    assert (pages.DOCS / name).read_text() == page(), "run: python -m tutti_gateway.cli.reference"


def test_every_command_and_every_key_has_its_place() -> None:
    commands, keys = pages.cli_page(), pages.config_page()
    assert all(f"## `tutti {name}`" in commands for name in COMMANDS)
    assert "### `tutti log verify`" in commands
    for key in ("name", "reads", "preset", "heartbeat_ms", "segment_bytes", "undecided_bytes", "insecure"):
        assert f"| `{key}` |" in keys


def test_every_public_name_is_listed_and_documented() -> None:
    page = _api_page()
    assert all(f"`{name}`" in page for name in tutti.__all__)
    assert "### `Reader.poll`" in page
    undocumented = ModuleType("undocumented")
    undocumented.__all__ = ["Plain"]  # type: ignore[attr-defined]  # as tutti has it
    undocumented.Plain = type("Plain", (), {})  # type: ignore[attr-defined]  # a class without a word
    with pytest.raises(LookupError, match="no docstring"):
        api_page(undocumented)


def test_every_command_that_prints_a_table_is_named() -> None:
    named = pages.cli_page().partition("print a table: ")[2].partition(". If")[0]
    modules: dict[str, list[str]] = {}
    for name, path in COMMANDS.items():
        modules.setdefault(path.target.partition(":")[0], []).append(name)
    tables = [names for module, names in modules.items() if "print_table(" in _source(module)]
    assert len(tables) > 5
    assert [names for names in tables if not any(f"`{name}" in named for name in names)] == []


def _source(module: str) -> str:
    found = find_spec(module)
    assert found is not None
    assert found.origin is not None
    return Path(found.origin).read_text()
