"""Line numbers of the keys of a TOML text, which the standard parser does not provide."""

from __future__ import annotations

import re
from collections.abc import Iterator

Path = tuple[str, ...]
_DEPTH = 8  # levels of nesting at which a key gets its own line; a deeper key, which no configuration has, gets its parent's line

_PART = r'(?:[A-Za-z0-9_-]+|"[^"]*"|\'[^\']*\')'
_DOTTED = rf"{_PART}(?:\s*\.\s*{_PART})*"
_TABLE = re.compile(rf"\s*\[\[?\s*({_DOTTED})\s*\]\]?\s*(?:#.*)?$")
_KEY = re.compile(rf"\s*({_DOTTED})\s*=")
_LONG_STRING = re.compile(r'"""|\'\'\'')


def key_lines(text: str) -> dict[Path, int]:
    """Return the first line (from 1) of each key or table of a valid TOML text.

    The result omits keys of inline tables; for these, `line_of` returns the line of the parent key.
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
    """Return the line of the key `path`, or of its nearest parent that has a line; None if no parent has one."""
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
