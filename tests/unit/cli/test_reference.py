"""Tests that docs/reference/cli.md, config.md, api.md and metrics.md match the code."""

from __future__ import annotations

from collections.abc import Callable
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
