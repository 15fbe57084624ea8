"""How commands report: JSON when asked for, rich tables on a terminal, plain lines otherwise."""

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
_WHOLE_MAX = 24  # characters of a cell that a narrow terminal does not break


def on_terminal() -> bool:
    """True if standard output is a terminal."""
    return sys.stdout.isatty()


def can_draw(stream: TextIO) -> bool:
    """True if `stream` is a terminal and rich, which draws tables and progress bars, is installed (extra `gateway`)."""
    return stream.isatty() and find_spec("rich") is not None


def print_json(value: object) -> None:
    """One line of JSON on standard output."""
    sys.stdout.write(orjson.dumps(value).decode() + "\n")
    sys.stdout.flush()


def note(text: str) -> None:
    """A line for people, on standard error, where it is in nobody's way. If that takes none (a full disk, a pipe that was closed),
    nobody hears it, and the work goes on.
    """
    with suppress(OSError):
        print(text, file=sys.stderr, flush=True)


def bytes_text(count: int) -> str:
    """A number of bytes as people read it: 3.4 MiB."""
    amount = float(count)
    for unit in _UNITS:
        if amount < _UNIT or unit == _UNITS[-1]:
            break
        amount /= _UNIT
    return f"{count} B" if unit == "B" else f"{amount:.1f} {unit}"


def counted(count: int, one: str, many: str | None = None) -> str:
    """So many of something, as people write it: 1 segment, 2,000 segments."""
    return f"{count:,} {one if count == 1 else many or one + 's'}"


def cell_text(value: object) -> str:
    """A value in a table or a line; nothing is a hyphen."""
    if value is None or value == "":
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, Mapping | list | tuple):
        return orjson.dumps(value).decode()
    return str(value)


def print_table(columns: Sequence[str], rows: Iterable[Sequence[object]], *, empty: str) -> None:
    """A table: drawn on a terminal, else a header and a line a row with tabs between; `empty` when there are no rows."""
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

    held = list(lines)
    table = Table(box=None, pad_edge=False, header_style="bold")
    for number, column in enumerate(columns):
        numeric = all(isinstance(row[number], int | float | None) for row in held)
        longest = max(len(cell_text(row[number])) for row in held)
        whole = len(column) <= longest <= _WHOLE_MAX  # a header may be broken, and what is long
        table.add_column(column, justify="right" if numeric else "left", overflow="fold", no_wrap=whole)
    for row in held:
        table.add_row(*(escape(cell_text(value)) for value in row))
    Console().print(table)


def print_fields(fields: Mapping[str, object]) -> None:
    """A line a field, for people: its name and its value."""
    width = max((len(name) for name in fields), default=0)
    for name, value in fields.items():
        print(f"{name:<{width}}  {cell_text(value)}")


class Meter(Protocol):
    """What a long work tells of its progress."""

    def advance(self, amount: int) -> None:
        """So much more is done (in the unit of the total)."""

    def reach(self, done: int, total: int) -> None:
        """So much is done, of so much."""


class _Silent:
    """Nobody looks."""

    def advance(self, amount: int) -> None:
        """Nothing."""

    def reach(self, done: int, total: int) -> None:
        """Nothing."""


@contextmanager
def progress(title: str, total: int | None, *, unit: str = "records") -> Iterator[Meter]:
    """A progress bar on standard error while the block runs, if that is a terminal; `total` None when it is not known."""
    if not can_draw(sys.stderr):
        yield _Silent()
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
