"""Mistakes in a configuration, and remarks for the operator: one sentence with location, problem and remedy."""

from __future__ import annotations

from typing import NamedTuple

KeyPath = tuple[str, ...]


class Mistake(NamedTuple):
    """One mistake in a file."""

    key: str
    line: int | None
    what: str
    do: str

    def text(self, file: str) -> str:
        """Return a sentence: file and line, key, problem, remedy."""
        place = f"{file}:{self.line}" if self.line else file
        return f"{place}: {self.key + ' ' if self.key else ''}{self.what}: {self.do}"
