"""Prints the results of commands as JSON with `--json`, as tables on a terminal, and as tab-separated lines otherwise."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from itertools import chain
from typing import Any, Protocol, TextIO

import orjson

_UNITS = ("B", "KiB", "MiB", "GiB", "TiB")
_UNIT = 1024
_NO_WRAP_CHARS_MAX = 24  # number of characters up to which a cell is never wrapped, even on a narrow terminal


def on_terminal() -> bool:
    """True if standard output is a terminal."""
    return sys.stdout.isatty()


def can_draw(stream: TextIO) -> bool:
    """True if `stream` is a terminal, and the package rich, which draws tables and progress bars, is installed."""
    return stream.isatty() and find_spec("rich") is not None


def print_json(value: object) -> None:
    """Write `value` as one line of JSON to standard output."""
    sys.stdout.write(orjson.dumps(value).decode() + "\n")
    sys.stdout.flush()


def note(text: str) -> None:
    """Write a line for the user to standard error, because standard output is for data.

    A failed write, for example to a closed pipe, is ignored, so that it does not end the command.
    """
    with suppress(OSError):
        print(text, file=sys.stderr, flush=True)


def bytes_text(count: int) -> str:
    """Return a byte count in binary units, for example 3.4 MiB."""
    amount = float(count)
    for unit in _UNITS:
        if amount < _UNIT or unit == _UNITS[-1]:
            break
        amount /= _UNIT
    return f"{count} B" if unit == "B" else f"{amount:.1f} {unit}"


def count_text(count: int, one: str, many: str | None = None) -> str:
    """Return a count with its noun in the singular or plural, for example "1 segment" or "2,000 segments"."""
    return f"{count:,} {one if count == 1 else many or one + 's'}"


def cell_text(value: object) -> str:
    """Return a value as text for a table cell. None and "" become a hyphen."""
    if value is None or value == "":
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, Mapping | list | tuple):
        return orjson.dumps(value).decode()
    return str(value)


def print_table(columns: Sequence[str], rows: Iterable[Sequence[object]], *, empty: str) -> None:
    """Print a table on a terminal, otherwise tab-separated lines with a header. Without rows, print the text `empty`."""
    lines = iter(rows)
    first = next(lines, None)
    if first is None:
        print(empty)
        return
    lines = chain([first], lines)
    if not can_draw(sys.stdout):
        print("\t".join(columns))
        for row in lines:
            print("\t".join(cell_text(value) for value in row))
        return
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    buffered = list(lines)
    table = Table(box=None, pad_edge=False, header_style="bold")
    for number, column in enumerate(columns):
        numeric = all(isinstance(row[number], int | float | None) for row in buffered)
        longest = max(len(cell_text(row[number])) for row in buffered)
        no_wrap = len(column) <= longest <= _NO_WRAP_CHARS_MAX  # wrap only headers and long cells
        table.add_column(column, justify="right" if numeric else "left", overflow="fold", no_wrap=no_wrap)
    for row in buffered:
        table.add_row(*(escape(cell_text(value)) for value in row))
    Console().print(table)


def print_fields(fields: Mapping[str, object]) -> None:
    """Print one line for each field, with the name and the value of the field."""
    width = max((len(name) for name in fields), default=0)
    for name, value in fields.items():
        print(f"{name:<{width}}  {cell_text(value)}")


class Meter(Protocol):
    """Receives the progress of a long operation."""

    def advance(self, amount: int) -> None:
        """Increase the progress by `amount`, in the unit of the progress bar (records or bytes)."""

    def reach(self, done: int, total: int) -> None:
        """Set the progress to `done` of `total`."""


class _NullMeter:
    """Progress meter for an output without a progress bar: discards all updates."""

    def advance(self, amount: int) -> None:
        """Discard the update."""

    def reach(self, done: int, total: int) -> None:
        """Discard the update."""


@contextmanager
def progress(title: str, total: int | None, *, unit: str = "records") -> Iterator[Meter]:
    """During the block, show a progress bar on standard error if it is a terminal. `total` is None if the total is unknown."""
    if not can_draw(sys.stderr):
        yield _NullMeter()
        return
    from rich import progress as bars
    from rich.console import Console

    columns: list[Any] = [bars.TextColumn("{task.description}"), bars.BarColumn()]
    if unit == "bytes":
        columns += [bars.DownloadColumn(), bars.TransferSpeedColumn()]
    else:
        columns += [bars.MofNCompleteColumn(), bars.TextColumn(unit)]
    columns += [bars.TimeElapsedColumn()]
    with bars.Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(title, total=total)

        class _Bar:
            def advance(self, amount: int) -> None:
                bar.advance(task, amount)

            def reach(self, done: int, total: int) -> None:
                bar.update(task, completed=done, total=total)

        yield _Bar()
