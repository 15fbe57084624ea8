"""docs/cli.md and docs/config.md say what the code says."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from gateway.cli import reference
from gateway.cli.commands import COMMANDS


@pytest.mark.parametrize(("name", "page"), [("cli.md", reference.cli_page), ("config.md", reference.config_page)])
def test_the_page_is_up_to_date(name: str, page: Callable[[], str]) -> None:
    assert (reference.DOCS / name).read_text() == page(), "run: python -m gateway.cli.reference"


def test_every_command_and_every_key_has_its_place() -> None:
    commands, keys = reference.cli_page(), reference.config_page()
    assert all(f"## `tutti {name}`" in commands for name in COMMANDS)
    assert "### `tutti log verify`" in commands
    for key in ("name", "reads", "preset", "heartbeat_ms", "segment_bytes", "undecided_bytes", "insecure"):
        assert f"| `{key}` |" in keys
