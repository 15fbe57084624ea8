"""Click group that imports a command only when it runs, so that `tutti --help` starts quickly."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from importlib import import_module
from typing import Any, NamedTuple

import click

from tutti_gateway.cli.common.interrupts import ImportGuard


class CommandPath(NamedTuple):
    """Import path of a command (`module:attribute`) and its summary in the command list."""

    target: str
    summary: str


class LazyGroup(click.Group):
    """Command group that maps command names to import paths."""

    def __init__(self, *arguments: Any, paths: Mapping[str, CommandPath], **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.paths = paths

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the command names, in the order of the table."""
        return list(self.paths)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import and return the command of that name; None if there is no such command."""
        path = self.paths.get(cmd_name)
        if path is None:
            return None
        module, _, attribute = path.target.partition(":")
        with ImportGuard():
            command = getattr(import_module(module), attribute)
        if not isinstance(command, click.Command):
            raise TypeError(f"{path.target} is a {type(command).__name__}, not a click command")
        return command

    def resolve_command(self, ctx: click.Context, args: list[str]) -> tuple[str | None, click.Command | None, list[str]]:
        """Resolve as click does; for an unknown name, suggest similar names."""
        name = args[0]
        if name not in self.paths and not name.startswith("-"):
            near = difflib.get_close_matches(name, self.paths, n=3)
            hint = f"did you mean {' or '.join(near)}?" if near else f"there are {', '.join(self.paths)}"
            raise click.UsageError(f"no command {name!r}: {hint}", ctx)
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the command list from the table, without importing any command."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, path.summary) for name, path in self.paths.items()])
