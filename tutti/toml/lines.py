"""On which line of a TOML text a key stands; the standard parser does not tell."""

from __future__ import annotations

import re
from collections.abc import Iterator

Path = tuple[str, ...]
_DEPTH = 8  # of a key, more than any configuration has; deeper ones are on the line of the key that holds them

_PART = r'(?:[A-Za-z0-9_-]+|"[^"]*"|\'[^\']*\')'
_DOTTED = rf"{_PART}(?:\s*\.\s*{_PART})*"
_TABLE = re.compile(rf"\s*\[\[?\s*({_DOTTED})\s*\]\]?\s*(?:#.*)?$")
_KEY = re.compile(rf"\s*({_DOTTED})\s*=")
_LONG_STRING = re.compile(r'"""|\'\'\'')


def key_lines(text: str) -> dict[Path, int]:
    """Path of a key or table -> the line (from 1) on which it stands first, for a text that is good TOML.

    Keys of inline tables are not told apart: they stand on the line of the key that holds them, see `line_of`.
    """
    lines: dict[Path, int] = {}
    table: Path = ()
    for number, line in _outside_of_long_strings(text):
        if heading := _TABLE.match(line):
            table = _parts(heading[1])[:_DEPTH]
            lines.setdefault(table, number)
        elif key := _KEY.match(line):
            path = (table + _parts(key[1]))[: len(table) + _DEPTH]
            for length in range(len(table) + 1, len(path) + 1):
                lines.setdefault(path[:length], number)
    return lines


def line_of(lines: dict[Path, int], path: Path) -> int | None:
    """The line of `path`, else of the nearest thing that holds it; None when the text holds nothing of it."""
    for length in range(min(len(path), 2 * _DEPTH), 0, -1):
        if path[:length] in lines:
            return lines[path[:length]]
    return None


def _outside_of_long_strings(text: str) -> Iterator[tuple[int, str]]:
    inside = ""
    for number, line in enumerate(text.splitlines(), 1):
        if not inside:
            yield number, line
        for quotes in _LONG_STRING.findall(line):
            if not inside:
                inside = quotes
            elif inside == quotes:
                inside = ""


def _parts(dotted: str) -> Path:
    return tuple(part.strip("\"'") for part in re.findall(_PART, dotted))
