"""Z85 (ZeroMQ RFC 32): encodes keys as text, with five characters for each four bytes."""

from __future__ import annotations

import struct

CHARACTERS = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.-:+=^!/*?&<>()[]{}@%$#"

_BASE = len(CHARACTERS)
_VALUES = {character: value for value, character in enumerate(CHARACTERS)}
_POWERS = [_BASE**exponent for exponent in (4, 3, 2, 1, 0)]


def encode(data: bytes) -> str:
    """Return `data` as text. The length of `data` must be a multiple of four."""
    words = struct.unpack(f">{len(data) // 4}I", data)
    return "".join(CHARACTERS[word // power % _BASE] for word in words for power in _POWERS)


def decode(text: str) -> bytes:
    """Return the bytes of a text.

    Raises:
        ValueError: the text is not Z85.
    """
    if len(text) % 5 or not _VALUES.keys() >= set(text):
        raise ValueError("the text is not Z85")
    values = [_VALUES[character] for character in text]
    words = [sum(map(int.__mul__, values[start : start + 5], _POWERS)) for start in range(0, len(values), 5)]
    if any(word >> 32 for word in words):
        raise ValueError("the text is not Z85: a group of five characters exceeds 32 bits")
    return struct.pack(f">{len(words)}I", *words)
