"""Loads a struct from a TOML file key by key, and reports all mistakes together, each with location and remedy."""

from __future__ import annotations

import difflib
import json
import re
import tomllib
from pathlib import Path
from typing import Any, TypeVar

import msgspec
from msgspec import Struct, inspect

from tutti.errors import remedy
from tutti.security.user_files import TooDeep, parse_toml, read_limited
from tutti.toml.lines import key_lines, line_of
from tutti.toml.mistakes import MISSING, ConfigMistakes, KeyPath, Mistake
from tutti.toml.units import parse_quantity, quantity_text, units_of

AStruct = TypeVar("AStruct", bound=Struct)
_MISSING = 1 << 30  # sorts after every line
_BARE_QUANTITY = re.compile(r"=\s*(\d+ ?[A-Za-z]+)\s*(#|$)")  # a number with a unit that lacks its quotes


def load_struct(path: str | Path, kind: type[AStruct]) -> AStruct:
    """Load a struct from a TOML file.

    Raises:
        ConfigMistakes: the file is not readable or has mistakes. The message has one line for each mistake, with missing keys last,
            because a misspelt key can be the cause of a missing one.
    """
    text, mistakes = read_text(path)
    tree, wrong = parse_tree(text) if text is not None else ({}, [])
    mistakes += wrong
    if not mistakes and text is not None:
        reading = StructReader(text, kind)
        value = reading.struct(kind, tree, ())
        mistakes = sorted(reading.mistakes, key=lambda mistake: mistake.line or _MISSING)
        if not mistakes:
            return value
    raise ConfigMistakes(str(path), mistakes, kind)


def read_text(path: str | Path) -> tuple[str | None, list[Mistake]]:
    """Return the text of a file and no mistake, or None and the mistake that describes the failure."""
    try:
        # Remove a byte order mark and convert line ends, which some editors write.
        return read_limited(path)[0].decode("utf-8-sig").replace("\r\n", "\n").replace("\r", "\n"), []
    except OSError as error:
        otherwise = "make it readable for this user" if isinstance(error, PermissionError) else "name a TOML file"
        return None, [Mistake("", None, f"cannot be read ({(error.strerror or str(error)).lower()})", remedy(error, otherwise))]
    except UnicodeDecodeError as error:
        return None, [Mistake("", None, f"is not UTF-8 text (byte {error.start})", "save it as UTF-8")]


def parse_tree(text: str) -> tuple[dict[str, Any], list[Mistake]]:
    """Parse TOML. Return the tree of values and no mistake, or an empty tree and the mistake at which the parser stopped."""
    try:
        return parse_toml(text), []
    except TooDeep as error:
        return {}, [Mistake("", error.line, "has a key of too many parts", "no key has more than a table's name and its own")]
    except tomllib.TOMLDecodeError as error:
        found = re.search(r"line (\d+)", str(error))
        line = int(found[1]) if found else text.count("\n") + 1
        what = f"is not TOML ({re.sub(r' [(]at .*', '', str(error)).lower()})"
        quantity = _BARE_QUANTITY.search(text.split("\n")[line - 1])
        do = (
            f'write a number with a unit in quotes: "{quantity[1].replace(" ", "")}"'
            if quantity
            else 'write `key = value`, text in "quotes", tables as [name]'
        )
        return {}, [Mistake("", line, what, do)]
    except RecursionError:
        return {}, [Mistake("", None, "nests arrays or tables too deeply to be read", "no key takes more than a list or a table")]
    except ValueError as error:  # an integer of thousands of digits
        return {}, [Mistake("", None, f"has a value that cannot be read ({error})", "correct the value")]


class StructReader:
    """Converts a tree of TOML values to structs and collects the mistakes."""

    def __init__(self, text: str, root: type[Struct]) -> None:
        """Create a reader for `text`, whose top level has the fields of the struct `root`."""
        self._root = root
        self.mistakes: list[Mistake] = []
        self._wrong: set[KeyPath] = set()
        self._typed: dict[KeyPath, Any] = {}
        self._lines = key_lines(text)

    def mistake(self, path: KeyPath, what: str, do: str) -> None:
        """Add a mistake: the key (`path`), the problem (`what`), and the remedy (`do`)."""
        self._wrong.add(path)
        self.mistakes.append(Mistake(".".join(path), line_of(self._lines, path), what, do))

    def good(self, *path: str) -> bool:
        """Return True if neither the key `path` nor one of its parents has a mistake."""
        return not any(path[:length] in self._wrong for length in range(1, len(path) + 1))

    def typed(self, path: KeyPath, default: str) -> str:
        """Return the value at `path` as text for errors, with the spelling of the file; `default` if the file lacks the key."""
        return _shown(self._typed[path]) if path in self._typed else default

    def struct(self, kind: type[AStruct], table: dict[str, Any], path: KeyPath) -> AStruct:
        """Convert a table to a struct of type `kind`.

        For a missing or wrong value, add a mistake, and use the default or the example of the key instead.
        """
        fields = {field.name: field for field in msgspec.structs.fields(kind)}
        for key in table.keys() - fields.keys():
            self._unknown((*path, key), list(fields))
        values: dict[str, Any] = {}
        for name, field in fields.items():
            here = (*path, name)
            value = _WRONG
            if name in table:
                value = self._value(field.type, table[name], here)
            elif field.required and isinstance(field.type, type) and issubclass(field.type, Struct):
                value = self.struct(field.type, {}, here)  # an empty table adds a mistake for each required key
            elif field.required:
                where = f" to {_table_text(path)}" if path else ""
                self.mistake(here, MISSING, f"add it{where}, for example {name} = {json.dumps(_example(field.type))}")
            if value is not _WRONG:
                values[name] = value
            elif field.required:
                values[name] = _example(field.type)
        return kind(**values)

    def _value(self, kind: Any, value: Any, path: KeyPath) -> Any:
        if isinstance(kind, type) and issubclass(kind, Struct):
            if isinstance(value, dict):
                return self.struct(kind, value, path)
            self.mistake(path, f"is {_shown(value)}", f"make it a table, [{'.'.join(path)}] with keys below it")
            return _WRONG
        # A text of one character may be a zero byte, because files can use it as column separator.
        if isinstance(value, str) and "\0" in value and len(value) > 1:
            self.mistake(path, f"is {_shown(value)}", "remove the zero byte: no path, name or address can contain one")
            return _WRONG
        self._typed[path] = value
        number = parse_quantity(value, units_of(kind)) if isinstance(value, str) else None
        try:
            return msgspec.convert(value if number is None else number, kind)
        except msgspec.ValidationError:
            self.mistake(path, f"is {_shown(value)}", f"it takes {accepted_values(kind)}")
            return _WRONG

    def _unknown(self, path: KeyPath, names: list[str]) -> None:
        near = difflib.get_close_matches(path[-1], names, n=1)
        elsewhere = [place for place in _all_keys(self._root, ()) if place[-1] == path[-1]]
        if elsewhere:  # a key with this name in another table is a better hint than a similar key in this table
            hint = f"it belongs in {_table_text(elsewhere[0][:-1])}"
        elif near:
            hint = f"did you mean {near[0]}?"
        else:
            hint = f"{_table_text(path[:-1])} takes {', '.join(names)}"
        self.mistake(path, "is not known", hint)


_WRONG = object()


def accepted_values(kind: Any) -> str:
    """Return the values that a field of type `kind` accepts, as text for error messages."""
    return _taken(inspect.type_info(kind))


def _taken(info: inspect.Type) -> str:
    match info:
        case inspect.Metadata(type=inspect.IntType(ge=int(least), le=int(most)), extra={"units": units, "plain": plain}):
            bounds = f"{quantity_text(least, units)} to {quantity_text(most, units)}"
            return f'{bounds}, as a whole number with a unit ({", ".join(units)}) in "quotes", or as a number of {plain}'
        case inspect.Metadata(type=inspect.StrType(), extra={"units": units}):
            return f'a whole number with a unit ({", ".join(units)}) in "quotes"'
        case inspect.Metadata(type=inner):
            return _taken(inner)
        case inspect.IntType():
            return f"a whole number from {info.ge} to {info.le}"
        case inspect.BoolType():
            return "true or false"
        case inspect.LiteralType(values=values):
            return " or ".join(f'"{value}"' for value in values)
        case inspect.StrType(min_length=1, max_length=1):
            return 'one character in "quotes"'
        case inspect.StrType(min_length=1):
            return 'text in "quotes" that is not empty'
        case inspect.ListType(item_type=inspect.LiteralType(values=values)):
            return "a list of some of " + ", ".join(f'"{value}"' for value in values)
        case inspect.ListType(min_length=1):
            return 'a list of texts, ["a", "b"], one at least'
        case inspect.ListType():
            return 'a list of texts, ["a", "b"]'
        case inspect.DictType(value_type=inspect.UnionType()):
            return 'a table of names and values, { "a.name" = "value" }'
        case inspect.DictType():
            return 'a table of names and addresses, { jfk = "127.0.0.1:7400" }'
        case inspect.UnionType(types=parts):
            return " or ".join(_taken(part) for part in parts if not isinstance(part, inspect.NoneType))
        case _:
            return 'text in "quotes"'


def _example(kind: Any) -> Any:
    info = inspect.type_info(kind)
    if isinstance(info, inspect.Metadata) and info.extra_json_schema:
        return info.extra_json_schema["examples"][0]
    raise TypeError(f"{kind} is required and has no example")


def _all_keys(kind: type[Struct], path: KeyPath) -> list[tuple[str, ...]]:
    keys: list[tuple[str, ...]] = []
    for field in msgspec.structs.fields(kind):
        keys.append((*path, field.name))
        if isinstance(field.type, type) and issubclass(field.type, Struct):
            keys.extend(_all_keys(field.type, (*path, field.name)))
    return keys


def _table_text(path: KeyPath) -> str:
    return f"[{'.'.join(path)}]" if path else "the top of the file (before any [table])"


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
