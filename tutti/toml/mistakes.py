"""Mistakes in a configuration. Each mistake becomes one sentence for the operator, with location, problem and remedy."""

from __future__ import annotations

from typing import NamedTuple

from tutti.errors import ConfigError

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


class ConfigMistakes(ConfigError):
    """A file has mistakes. `mistakes` has all of them; the message has one line for each of the first mistakes."""

    def __init__(self, path: str, mistakes: list[Mistake]) -> None:
        """Compose the message for the mistakes in the file `path`."""
        others = [f"and {len(mistakes) - _REPORTED_MAX} more in the file"] if len(mistakes) > _REPORTED_MAX else []
        super().__init__("\n".join([*(mistake.text(path) for mistake in mistakes[:_REPORTED_MAX]), *others]))
        self.mistakes = mistakes
