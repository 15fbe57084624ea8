"""Extraction of fields from JSON objects, unconverted, as the bytes of the JSON text.

A JSON library converts a number to 64 bits: 12345678901234567890123 becomes a float, and 1.10 becomes 1.1. Two different ids could
become the same key. Therefore, this module never converts a field that becomes the key or the value of a record.

All limits depend only on the text, so that the same row is valid or invalid in every run.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from operator import attrgetter
from typing import Any

import msgspec
import numpy as np
from msgspec import Raw

#: Maximum nesting of arrays and objects. The decoder's own limit is near 900, but varies with the depth of the caller's stack.
DEPTH_MAX = 512
_SHALLOW_BYTES = 2 * DEPTH_MAX  # a shorter text cannot be nested deeper

_VALUE = msgspec.json.Decoder(Raw)
_TEXT = msgspec.json.Decoder(str)
_STRING = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"')
_STEPS = bytes.maketrans(b"[{]}", b"\x01\x01\xff\xff")  # brackets -> steps of the depth (int8): +1 opens, -1 closes
_NO_BRACKETS = bytes(set(range(256)) - set(b"[]{}"))
_PLAIN = re.compile(r'[^"\\/\x00-\x1f]*')  # names whose only other spelling in JSON text has \u escapes
_ESCAPED_NAME = re.compile(rb'\\u[^"\\]*"\s*:')


class _Name:
    """The name of a JSON member. Two objects with the same text are unequal, so that a dict keeps duplicate members."""

    __slots__ = ("text",)

    def __init__(self, text: str) -> None:
        self.text = text


_MEMBERS: msgspec.json.Decoder[dict[_Name, Raw]] = msgspec.json.Decoder(dict[_Name, Raw], dec_hook=lambda _, text: _Name(text))


class NotJson(ValueError):
    """The text is not JSON. The attribute `what` is the error, and `column` its position in bytes, from 1."""

    def __init__(self, what: str, column: int) -> None:
        """Compose the message from the error and its position."""
        super().__init__(f"it is not JSON: {what}, at column {column}")
        self.what, self.column = what, column


class NotAnObject(ValueError):
    """The JSON value is not an object."""

    def __init__(self) -> None:
        """Create the error with its fixed message."""
        super().__init__("it is not a JSON object, so it has no fields")


class JsonFields:
    """Extracts the fields with given names from JSON objects."""

    def __init__(self, names: Sequence[str]) -> None:
        """Prepare the extraction.

        Args:
            names: names of the fields; a name may occur more than once.
        """
        self._names = list(names)
        self._spelled = [msgspec.json.encode(name) for name in set(names)]
        self._struct: msgspec.json.Decoder[Any] | None = None
        if all(map(_PLAIN.fullmatch, names)):
            attributes = {name: f"field_{number}" for number, name in enumerate(names)}
            fields = [(attribute, Raw, Raw()) for attribute in attributes.values()]
            rename = {attribute: name for name, attribute in attributes.items()}
            self._struct = msgspec.json.Decoder(msgspec.defstruct("Fields", fields, rename=rename, gc=False))
            # With `__class__` as an extra name, attrgetter returns a tuple even for a single field.
            self._fields = attrgetter("__class__", *(attributes[name] for name in names))

    def of(self, text: bytes) -> list[bytes]:
        """Return the fields of the object `text` (UTF-8) in the order of the names; b"" for a missing field.

        Raises:
            NotJson: `text` is not JSON.
            NotAnObject: `text` is not an object.
            ValueError: `text` is nested too deeply, or has one of the fields more than once.
        """
        try:
            # Take the slow path if a field may occur twice: its name occurs twice in the text, or a name is written with escapes.
            slow = b"\\u" in text and _ESCAPED_NAME.search(text) is not None
            for name in self._spelled:
                slow = slow or text.count(name) > 1
            if slow or self._struct is None:
                found = self._from_members(text)
            else:
                found = list(map(bytes, self._fields(self._struct.decode(text))[1:]))
        except msgspec.ValidationError as error:
            check_json(text)
            raise NotAnObject from error
        except (msgspec.DecodeError, RecursionError) as error:
            raise _error_of(error, text) from error
        if len(text) > _SHALLOW_BYTES:
            _check_depth(text)
        return found

    def _from_members(self, text: bytes) -> list[bytes]:
        """Return the fields by decoding all members, which is slower but detects duplicate fields."""
        found: dict[str, bytes] = {}
        for name, field in _MEMBERS.decode(text).items():
            if name.text in found and name.text in self._names:
                values = f"{_excerpt(found[name.text])} and {_excerpt(bytes(field))}"
                raise ValueError(f"the object has the field {name.text!r} more than once, as {values}: keep one of them")
            found[name.text] = bytes(field)
        return [found.get(name, b"") for name in self._names]


def check_json(text: bytes) -> None:
    """Check that `text` (UTF-8) is one JSON value.

    Raises:
        NotJson: `text` is not a JSON value.
        ValueError: `text` is nested too deeply.
    """
    try:
        _VALUE.decode(text)
    except (msgspec.DecodeError, RecursionError) as error:
        raise _error_of(error, text) from error
    if len(text) > _SHALLOW_BYTES:
        _check_depth(text)


def field_bytes(field: bytes) -> bytes | None:
    """Return a field as a record's key or value: a string as UTF-8, null or a missing field as None, others as JSON text."""
    if field[:1] == b'"':
        return _TEXT.decode(field).encode() if b"\\" in field else field[1:-1]
    return None if field in (b"", b"null") else field


def text_of(field: bytes) -> str:
    """Return the text of a field: the decoded text of a JSON string, or the JSON text of any other field."""
    return _TEXT.decode(field) if field[:1] == b'"' else field.decode()


def _check_depth(text: bytes) -> None:
    """Raise ValueError if valid JSON text is nested deeper than `DEPTH_MAX`."""
    if text.count(b"[") + text.count(b"{") <= DEPTH_MAX:
        return
    steps = np.frombuffer(_STRING.sub(b"", text).translate(_STEPS, _NO_BRACKETS), np.int8)
    if int(np.cumsum(steps, dtype=np.int32).max()) > DEPTH_MAX:
        raise ValueError(_TOO_DEEP)


_TOO_DEEP = f"the JSON is nested too deeply: at most {DEPTH_MAX} levels of arrays and objects are allowed"


def _error_of(error: Exception, text: bytes) -> ValueError:
    if isinstance(error, RecursionError):
        return ValueError(_TOO_DEEP)
    message = str(error).removeprefix("JSON is malformed: ")
    at = error_position(message)
    if "truncated" in message and b"\\ud" in text.lower():  # msgspec also reports half of a surrogate pair as truncated
        message = "the text ends too early, or has half of a surrogate pair"
    return NotJson(message.partition(" (byte")[0].lower(), len(text) + 1 if at is None else at + 1)


def error_position(message: str) -> int | None:
    """Return the byte position (from 0) that an error message of msgspec contains. Return None if the message has no position."""
    _, _, number = message.partition("(byte ")
    if not number.rstrip(")").isdigit():
        return None
    return int(number.rstrip(")")) - ("trailing" in message)  # for trailing data, msgspec reports one byte too far


def _excerpt(text: bytes) -> str:
    return text[:60].decode(errors="replace")
