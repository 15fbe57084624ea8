"""Click group that imports a command only when it runs, so that `tutti --help` starts quickly."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from importlib import import_module
from typing import Any, NamedTuple

import click

from tutti_gateway.cli.common.interrupts import ImportGuard


class CommandPath(NamedTuple):
    """Where a command is defined (`target`, as `module:attribute`), and its one-line summary for the command list."""

    target: str
    summary: str


class LazyGroup(click.Group):
    """Command group that knows its commands only by import path, until one of them runs.

    Args:
        sections: titles of the command list, and the commands below each title.
        paths: the commands of all sections, by name.
    """

    def __init__(
        self,
        *arguments: Any,
        sections: Mapping[str, Mapping[str, CommandPath]],
        paths: Mapping[str, CommandPath],
        **options: Any,
    ) -> None:
        super().__init__(*arguments, **options)
        self.sections = sections
        self.paths = paths

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the command names in the order of `paths`, which is the order in `tutti --help`."""
        return list(self.paths)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import the command `cmd_name` and return it, or return None if no command has that name."""
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
        """Resolve a command name as click does, but suggest similar commands if the name is unknown."""
        name = args[0]
        if name not in self.paths and not name.startswith("-"):
            near = difflib.get_close_matches(name, self.paths, n=3)
            hint = f"did you mean {' or '.join(near)}?" if near else f"there are {', '.join(self.paths)}"
            raise click.UsageError(f"no command {name!r}: {hint}", ctx)
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the command list from the summaries in `sections`, so that `tutti --help` imports no command."""
        width = max(map(len, self.paths))
        for title, paths in self.sections.items():
            with formatter.section(title):
                formatter.write_dl([(name.ljust(width), path.summary) for name, path in paths.items()])
