"""Mistakes in a configuration. Each mistake becomes one sentence for the operator, with location, problem and remedy."""

from __future__ import annotations

from typing import NamedTuple

KeyPath = tuple[str, ...]


class Mistake(NamedTuple):
    """One mistake in a file: the key ("" for the whole file), its line, the problem (`what`), and the remedy (`do`)."""

    key: str
    line: int | None
    what: str
    do: str

    def text(self, file: str) -> str:
        """Return the mistake as one sentence: file and line, key, problem, remedy."""
        place = f"{file}:{self.line}" if self.line else file
        return f"{place}: {self.key + ' ' if self.key else ''}{self.what}: {self.do}"
