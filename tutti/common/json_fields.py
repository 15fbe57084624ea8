"""Fields of JSON objects, each as the bytes that the source has for it.

A JSON library reads a number into 64 bits: 12345678901234567890123 becomes a float, 1.10 becomes 1.1, and two ids become one key.
So a field that becomes the key or the value of a record is never read into a number and written again.

Every limit here depends on the text alone, so the same row is good or bad in every run.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from operator import attrgetter
from typing import Any

import msgspec
import numpy as np
from msgspec import Raw

#: Arrays and objects inside each other. The decoder's own limit is near 900, and depends on the caller's stack.
DEPTH_MAX = 512
_SHALLOW_BYTES = 2 * DEPTH_MAX  # a text of no more is not nested deeper

_VALUE = msgspec.json.Decoder(Raw)
_TEXT = msgspec.json.Decoder(str)
_STRING = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"')
_STEPS = bytes.maketrans(b"[{]}", b"\x01\x01\xff\xff")  # one level down, one level up
_NO_BRACKETS = bytes(set(range(256)) - set(b"[]{}"))
_PLAIN = re.compile(r'[^"\\/\x00-\x1f]*')  # names with one spelling, but for those with \\u
_ESCAPED_NAME = re.compile(rb'\\u[^"\\]*"\s*:')


class _Name:
    """A name of a member. It equals no other one, so that a dict of members keeps those that have the same name."""

    __slots__ = ("text",)

    def __init__(self, text: str) -> None:
        self.text = text


_MEMBERS: msgspec.json.Decoder[dict[_Name, Raw]] = msgspec.json.Decoder(dict[_Name, Raw], dec_hook=lambda _, text: _Name(text))


class NotJson(ValueError):
    """Text that is no JSON: what is wrong, and at which column (from 1, in bytes)."""

    def __init__(self, what: str, column: int) -> None:
        """See the class."""
        super().__init__(f"it is no JSON: {what}, at column {column}")
        self.what, self.column = what, column


class NoFields(ValueError):
    """JSON that is no object."""

    def __init__(self) -> None:
        """See the class."""
        super().__init__("it is no JSON object, so it has no fields")


class JsonFields:
    """Takes the fields of some names out of JSON objects."""

    def __init__(self, names: Sequence[str]) -> None:
        """Args:
        names: of the fields; one may come more than once.
        """
        self._names = list(names)
        self._spelled = [msgspec.json.encode(name) for name in set(names)]
        self._struct: msgspec.json.Decoder[Any] | None = None
        if all(map(_PLAIN.fullmatch, names)):
            attributes = {name: f"field_{number}" for number, name in enumerate(names)}
            fields = [(attribute, Raw, Raw()) for attribute in attributes.values()]
            rename = {attribute: name for name, attribute in attributes.items()}
            self._struct = msgspec.json.Decoder(msgspec.defstruct("Fields", fields, rename=rename, gc=False))
            self._fields = attrgetter("__class__", *(attributes[name] for name in names))  # of one name alone it gives no tuple

    def of(self, text: bytes) -> list[bytes]:
        """Return the fields of the object `text`, which is UTF-8, in the order of the names; empty for a field that is missing.

        Raises:
            NotJson: `text` is no JSON.
            NoFields: it is no object.
            ValueError: it is nested too deeply, or has one of the fields more than once.
        """
        try:
            # A name may be there twice, spelled with escapes or without: almost no object that has it once gets to the slower way.
            slowly = b"\\u" in text and _ESCAPED_NAME.search(text) is not None
            for name in self._spelled:
                slowly = slowly or text.count(name) > 1
            if slowly or self._struct is None:
                found = self._from_members(text)
            else:
                found = list(map(bytes, self._fields(self._struct.decode(text))[1:]))
        except msgspec.ValidationError as error:
            check_json(text)
            raise NoFields from error
        except (msgspec.DecodeError, RecursionError) as error:
            raise _explained(error, text) from error
        if len(text) > _SHALLOW_BYTES:
            _check_depth(text)
        return found

    def _from_members(self, text: bytes) -> list[bytes]:
        """The fields by way of all members: slower, and knows whether one comes twice."""
        found: dict[str, bytes] = {}
        for name, field in _MEMBERS.decode(text).items():
            if name.text in found and name.text in self._names:
                values = f"{_shown(found[name.text])} and {_shown(bytes(field))}"
                raise ValueError(f"it has the field {name.text!r} more than once, as {values}: keep one of them")
            found[name.text] = bytes(field)
        return [found.get(name, b"") for name in self._names]


def check_json(text: bytes) -> None:
    """Check that `text`, which is UTF-8, is one JSON value.

    Raises:
        NotJson: it is not.
        ValueError: it is nested too deeply.
    """
    try:
        _VALUE.decode(text)
    except (msgspec.DecodeError, RecursionError) as error:
        raise _explained(error, text) from error
    if len(text) > _SHALLOW_BYTES:
        _check_depth(text)


def field_bytes(field: bytes) -> bytes | None:
    """Return a field as a key or value: text as UTF-8, None for null or a missing one, else the bytes that it has in the source."""
    if field[:1] == b'"':
        return _TEXT.decode(field).encode() if b"\\" in field else field[1:-1]
    return None if field in (b"", b"null") else field


def text_of(field: bytes) -> str:
    """Return the text of a field that is a JSON string; of any other field the text that it has in the source."""
    return _TEXT.decode(field) if field[:1] == b'"' else field.decode()


def _check_depth(text: bytes) -> None:
    """Refuse valid JSON that is nested deeper than `DEPTH_MAX`."""
    if text.count(b"[") + text.count(b"{") <= DEPTH_MAX:
        return
    steps = np.frombuffer(_STRING.sub(b"", text).translate(_STEPS, _NO_BRACKETS), np.int8)
    if int(np.cumsum(steps, dtype=np.int32).max()) > DEPTH_MAX:
        raise ValueError(_TOO_DEEP)


_TOO_DEEP = f"its JSON is nested too deeply: at most {DEPTH_MAX} arrays and objects may be inside each other"


def _explained(error: Exception, text: bytes) -> ValueError:
    if isinstance(error, RecursionError):
        return ValueError(_TOO_DEEP)
    told = str(error).removeprefix("JSON is malformed: ")
    at = byte_of(told)
    if "truncated" in told and b"\\ud" in text.lower():  # msgspec has one message for both
        told = "it ends too early, or has half of a surrogate pair"
    return NotJson(told.partition(" (byte")[0].lower(), len(text) + 1 if at is None else at + 1)


def byte_of(told: str) -> int | None:
    """Return the position that a message of msgspec names, in bytes from 0; None if it names none."""
    _, _, number = told.partition("(byte ")
    if not number.rstrip(")").isdigit():
        return None
    return int(number.rstrip(")")) - ("trailing" in told)  # of what follows a value, msgspec names the second byte


def _shown(text: bytes) -> str:
    return text[:60].decode(errors="replace")
