"""What is wrong with a configuration, or what an operator should know of it, as one sentence: where, what, what to do."""

from __future__ import annotations

from typing import NamedTuple

KeyPath = tuple[str, ...]


class Mistake(NamedTuple):
    """One thing wrong in a file."""

    key: str
    line: int | None
    what: str
    do: str

    def text(self, file: str) -> str:
        """As a sentence: file and line, key, what is wrong, what to do."""
        place = f"{file}:{self.line}" if self.line else file
        return f"{place}: {self.key + ' ' if self.key else ''}{self.what}: {self.do}"
