"""Mistakes in a configuration. Each mistake becomes one sentence for the operator, with location, problem and remedy."""

from __future__ import annotations

from typing import NamedTuple

from msgspec import Struct

from tutti.errors import WrongFile

KeyPath = tuple[str, ...]
MISSING = "is missing"  # what is wrong with a key that the file must have
_REPORTED_MAX = 10  # mistakes that one error message lists


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


class ConfigMistakes(WrongFile):
    """A file has mistakes. `mistakes` has all of them."""

    def __init__(self, path: str, mistakes: list[Mistake], struct: type[Struct], message: str = "") -> None:
        """Compose the message for the mistakes in a file, one line for each of the first mistakes.

        Args:
            path: path of the file.
            mistakes: all mistakes in the file.
            struct: the struct with the keys of the file.
            message: another message.
        """
        others = [f"and {len(mistakes) - _REPORTED_MAX} more in the file"] if len(mistakes) > _REPORTED_MAX else []
        lines = [*(mistake.text(path) for mistake in mistakes[:_REPORTED_MAX]), *others]
        super().__init__(message or "\n".join(lines), path, f"{struct.__module__}:{struct.__name__}")
        self.mistakes = mistakes
