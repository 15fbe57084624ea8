"""Generates docs/reference/{cli,config,api,metrics}.md. A test fails if a page differs from the generated text."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from inspect import cleandoc
from pathlib import Path
from typing import Any

import click
import msgspec
from msgspec import Struct, inspect

from tutti.toml.units import quantity_text, units_of
from tutti_gateway.cli.reference.api import MADE, api_page
from tutti_gateway.cli.reference.metrics import metrics_page

DOCS = Path(__file__).parents[4] / "docs" / "reference"


def cli_page() -> str:
    """Return the text of cli.md: all commands with their help texts and options."""
    from tutti_gateway.cli.commands import tutti

    parts = [f"# Commands\n\n{MADE}\n"]
    parts.append("`tutti` is the same as `python -m tutti_gateway`. Every command describes its arguments with `--help`.\n")
    parts.append(_CLI_INTRODUCTION)
    parts.extend(_command(tutti, click.Context(tutti, info_name="tutti"), "##"))
    return "\n".join(parts)


def config_page() -> str:
    """Return the text of config.md: all configuration keys with their bounds, defaults and meanings."""
    from tutti_gateway.config.model import PRESETS, Config

    parts = [f"# Configuration\n\n{MADE}\n{_CONFIG_INTRODUCTION}"]
    parts.extend(_table(Config, ""))
    names = list(PRESETS["lan"])
    parts.append("## Presets\n\n`[group] preset` selects the default values in `[timers]`. A timer that is set keeps its value.\n")
    parts.append(_rows([["preset", *names], *([f"`{preset}`", *map(str, timers.values())] for preset, timers in PRESETS.items())]))
    return "\n".join(parts)


_CLI_INTRODUCTION = """\
- `--url` takes one or more gateways, `tutti://HOST:PORT[,HOST:PORT...]`. The default is `$TUTTI_URL`, or `tutti://127.0.0.1:7400`
  if that variable is not set. `replay` and `backfill` use the default address only without `--path` and `--archive`.
- Results go to standard output. Progress, reasons for waiting, and confirmations of changes go to standard error.
- Some commands print a table: `members`, `topics`, `queries`, `producers`, `tokens list`, `keys show`, `archive list`, `trace`,
  `log inspect` and `status --watch`. If standard output is not a terminal, a table becomes lines with tabs between the fields.
  The first line has the column names (in `trace`, the second line), and a hyphen marks an empty field. The other commands print
  sentences, or only the result (`offsets`, `log digest`). With `--json`, a command prints one line of JSON instead. With
  `--json`, `log inspect` prints one line for each frame, `trace` one line for each step, and `status --watch` one line for each
  change.
- Some commands print JSON by default: `status` if standard output is not a terminal, `tail` (see `--format`), and `serve` and
  `dev`, which print one line when they are ready.
- Arguments, including file names, must be UTF-8 text. A file of configuration, keys, tokens or certificates may have at most
  1 MiB. A file of configuration, keys or tokens may also be a pipe (`<(...)` of a shell) that delivers its data within 10 s.
- Exit codes: 0: success; 1: failed; 2: wrong use; 3: unavailable; 4: corruption found. An error is one line, `error: ...`, on
  standard error. After Ctrl-C, the exit code is 130. Commands that run until they are stopped end with 0, such as `serve`, `dev`
  and `tail --follow`; only `status --watch` ends with 130.
- To complete commands and options in the shell, add `eval "$(tutti completion bash)"` to `~/.bashrc`, or
  `eval "$(tutti completion zsh)"` to `~/.zshrc`. For fish, run `tutti completion fish > ~/.config/fish/completions/tutti.fish`. The
  shell also completes names of topics, gateways and producers, which it requests from the gateways of `--url`. Without an answer
  within half a second, or without the right to list the names, the shell completes no names.
"""

_CONFIG_INTRODUCTION = """\
A gateway reads one TOML file: `tutti serve --config FILE`. `tutti config init` writes a commented file to start from, which shows
every key with its default: [conf/gateway.toml](../../conf/gateway.toml). `tutti config check FILE` explains every mistake in the
file and its correction. An unknown key is an error. [conf/minimal.toml](../../conf/minimal.toml) is the smallest configuration,
[conf/group.toml](../../conf/group.toml) configures a gateway of a group of three, and [conf/secured.toml](../../conf/secured.toml)
adds keys, tokens and certificates. A relative path is relative to the working directory, except in `[security]`, where it is
relative to the directory of the configuration file.

A size is a number of bytes, or a text with a unit, such as `segment_bytes = "128MB"`. The unit is B, KB, MB, GB or TB (powers
of 1000), or KiB, MiB, GiB or TiB (powers of 1024). A time is a number of milliseconds, or a text with a unit, such as `tick_ms
= "10s"`. The unit is ms, s, m (minutes), h or d. The number before a unit is whole, and spaces may separate the two. A unit may
be in lower or upper case, unless the case changes its meaning: `M` could mean months, and `Mb` means bits, so both are errors.
The files of the archiver and of the connectors take the same units.
"""


def _command(command: click.Command, context: click.Context, heading: str) -> Iterator[str]:
    if isinstance(command, click.Group):
        if context.parent is not None:
            yield f"{heading} `{context.command_path}`\n\n{_help(command)}\n"
            yield from _options(command, context)
            heading += "#"
        for name in command.list_commands(context):
            inner = command.get_command(context, name)
            if inner is not None:
                yield from _command(inner, click.Context(inner, parent=context, info_name=name), heading)
        return
    pieces = " ".join(command.collect_usage_pieces(context))
    yield f"{heading} `{context.command_path}`\n\n    {context.command_path} {pieces}\n\n{_help(command)}\n"
    yield from _options(command, context)


def _options(command: click.Command, context: click.Context) -> Iterator[str]:
    rows = [record for option in command.get_params(context) if (record := option.get_help_record(context))]
    rows = [record for record in rows if record[1] and not record[0].endswith("--help")]
    if rows:
        yield _rows([["option", "meaning"], *([f"`{_cell(name)}`", _cell(text)] for name, text in rows)])


def _help(command: click.Command) -> str:
    paragraphs = []
    for paragraph in cleandoc(command.help or "").split("\n\n"):
        if paragraph.startswith("\b\n"):
            paragraphs.append("\n".join(f"    {line}" for line in paragraph.splitlines()[1:]))
        else:
            paragraphs.append(" ".join(paragraph.split()))
    return "\n\n".join(paragraphs)


def _table(kind: type[Struct], name: str) -> Iterator[str]:
    from tutti.toml.loader import accepted_values

    rows = [["key", "values", "default", "meaning"]]
    tables: list[tuple[type[Struct], str]] = []
    for field in msgspec.structs.fields(kind):
        if isinstance(field.type, type) and issubclass(field.type, Struct):
            tables.append((field.type, field.name))
        else:
            rows.append([f"`{field.name}`", _cell(accepted_values(field.type)), _default(field), _cell(_description(field.type))])
    doc = (kind.__doc__ or "").split("\n\n")[0].strip()
    yield f"## {f'`[{name}]`' if name else 'Top of the file'}\n\n{doc}\n"
    yield _rows(rows)
    for table, inner in tables:
        yield from _table(table, inner)


def _default(field: msgspec.structs.FieldInfo) -> str:
    if field.required:
        return "required"
    value: Any = field.default_factory() if field.default is msgspec.NODEFAULT else field.default
    if value is None or value == {}:
        return ""
    if (units := units_of(field.type)) and value:
        return f'`"{quantity_text(value, units)}"`'
    return f"`{str(value).lower() if isinstance(value, bool) else value}`"


def _description(kind: Any) -> str:
    information = inspect.type_info(kind)
    return str((information.extra_json_schema or {}).get("description", "")) if isinstance(information, inspect.Metadata) else ""


def _rows(rows: list[list[str]]) -> str:
    header, *rest = (f"| {' | '.join(row)} |" for row in rows)
    return "\n".join([header, "|" + "---|" * len(rows[0]), *rest]) + "\n"


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


def main() -> int:
    """Write the reference pages."""
    import tutti

    pages = {"cli.md": cli_page(), "config.md": config_page(), "api.md": api_page(tutti), "metrics.md": metrics_page()}
    for name, page in pages.items():
        (DOCS / name).write_text(page)
        print(f"wrote {DOCS / name}", file=sys.stderr)
    return 0
