"""Sizes and times with a unit, such as "128MB" and "10 s", which a configuration accepts in addition to plain numbers."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Any

from msgspec import Meta, inspect

#: Multiples of one byte. A size that is a plain number counts bytes.
SIZE_UNITS = {"B": 1, **{f"{letter}B": 1000**power for power, letter in enumerate("KMGT", 1)}}
SIZE_UNITS |= {f"{letter}iB": 1024**power for power, letter in enumerate("KMGT", 1)}
#: Multiples of one millisecond. A time that is a plain number counts milliseconds.
TIME_UNITS = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}

#: Types of fields, to which `Annotated[Size, Meta(ge=...)]` adds bounds. `Duration` is the text alone, without plain numbers.
Size = Annotated[int, Meta(extra={"units": SIZE_UNITS, "plain": "bytes"})]
Milliseconds = Annotated[int, Meta(extra={"units": TIME_UNITS, "plain": "milliseconds"})]
Duration = Annotated[str, Meta(extra={"units": TIME_UNITS})]

_QUANTITY = re.compile(r"([0-9]{1,18}) *([A-Za-z]+)")
_AMBIGUOUS = re.compile(r"M|[KMGT]i?b")  # M can be a month, and Mb is a number of bits


def units_of(kind: Any) -> Mapping[str, int]:
    """Return the units that a number of type `kind` accepts; none if the number is neither a size nor a time."""
    found: Mapping[str, int] = {}
    match inspect.type_info(kind):
        case inspect.Metadata(type=inspect.IntType(), extra={"units": units}):
            found = units
    return found


def parse_quantity(text: str, units: Mapping[str, int]) -> int | None:
    """Return the number that a text such as "128MB" means, or None if the text is not a whole number with one of the units.

    Spaces may separate the number from the unit. The unit may be in upper or lower case, unless its case changes the meaning.
    """
    found = _QUANTITY.fullmatch(text)
    if found is None or _AMBIGUOUS.fullmatch(found[2]):
        return None
    multiples = {unit.lower(): multiple for unit, multiple in units.items()}
    multiple = multiples.get(found[2].lower())
    return None if multiple is None else int(found[1]) * multiple


def quantity_text(number: int, units: Mapping[str, int]) -> str:
    """Return a number as text in the largest unit that divides the number, such as "32MiB" for 33554432."""
    multiple, unit = max((multiple, unit) for unit, multiple in units.items() if number % multiple == 0)
    return f"{number // multiple}{unit}" if number else "0"
