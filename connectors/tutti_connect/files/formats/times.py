"""Parsing of times in files: converts ISO 8601 text and numbers to microseconds since 1970."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from decimal import MAX_EMAX, MAX_PREC, MIN_EMIN, ROUND_HALF_EVEN, Context, Decimal

from tutti.data.frames.schema import TIME_US_MAX, TIME_US_MIN
from tutti_connect.files.config import TimeForm

UNITS_US = {"s": 1_000_000, "ms": 1000, "us": 1}
DIGITS_MAX = 25  # digits before the decimal point; a longer number is outside the years 1 to 9999 in any unit
_EPOCH, _MICROSECOND = datetime(1970, 1, 1, tzinfo=UTC), timedelta(microseconds=1)
_NUMBER = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?")
_EXACT = Context(prec=MAX_PREC, Emax=MAX_EMAX, Emin=MIN_EMIN)


def time_us(value: object, form: TimeForm, name: str) -> int:
    """Convert a value to microseconds since 1970.

    Raises:
        ValueError: the value is not a time in the years 1 to 9999.
    """
    if value is None:
        raise ValueError(f"{name} is null, but must be a time ({_FORMS[form]})")
    try:
        if isinstance(value, datetime):
            stamp = value
        elif form == "iso":
            stamp = datetime.fromisoformat(value)  # type: ignore[arg-type]  # raises TypeError for a value that is not text
        else:
            return _checked(_number_us(value, UNITS_US[form]), value, name)
        aware = stamp if stamp.tzinfo else stamp.replace(tzinfo=UTC)
        return _checked((aware - _EPOCH) // _MICROSECOND, value, name)
    except (TypeError, ValueError, ArithmeticError) as error:
        if isinstance(error, _Range):
            raise
        raise ValueError(f"{name} is {str(value)[:60]!r}, which is not a time ({_FORMS[form]})") from error


_FORMS = {
    "iso": "ISO 8601, as 2026-01-31T12:00:00Z",
    "s": "seconds since 1970",
    "ms": "milliseconds since 1970",
    "us": "microseconds since 1970",
}


class _Range(ValueError):
    """The time is outside the years 1 to 9999."""


def _checked(stamp_us: int, value: object, name: str) -> int:
    if not TIME_US_MIN <= stamp_us <= TIME_US_MAX:
        raise _Range(f"{name} is {str(value)[:60]!r}, which is outside the years 1 to 9999")
    return stamp_us


def _number_us(value: object, unit_us: int) -> int:
    """Convert a number of units to microseconds, rounded to the nearest microsecond.

    The conversion uses decimal digits, because a 64-bit float cannot represent every microsecond of the years 1 to 9999.
    """
    if isinstance(value, int) and not isinstance(value, bool):
        return int(value) * unit_us
    if isinstance(value, str):
        text = value.strip()
        if len(text) < DIGITS_MAX and text.isascii() and text.isdigit():
            return int(text) * unit_us
        if not _NUMBER.fullmatch(text):
            raise ValueError
        number = Decimal(text)
    elif isinstance(value, float):
        number = Decimal(repr(value))
    elif isinstance(value, Decimal):
        number = value
    else:
        raise TypeError
    if not number.is_finite():
        raise ValueError
    if number and number.adjusted() > DIGITS_MAX:
        return TIME_US_MAX + 1
    return int(_EXACT.multiply(number, unit_us).to_integral_value(ROUND_HALF_EVEN, _EXACT))
