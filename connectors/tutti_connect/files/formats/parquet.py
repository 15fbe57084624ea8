"""Conversion of Parquet rows to records.

Arrow's conversion to Python objects loses digits of some values, such as nanoseconds, and wraps INT96 times outside the years 1677
to 2262 around. JSON has no NaN and no infinity. This module therefore defines one exact JSON form for each Parquet type. A row goes
to quarantine if one of its values, such as the year 20000, has no exact form. The quarantine file contains the column's name and
the value.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import TYPE_CHECKING, Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from tutti.data.frames.schema import TIME_US_MAX, TIME_US_MIN
from tutti_connect.files import limits
from tutti_connect.files.formats.rows import BadRow, FieldExtractor, Rows, Unreadable, to_json, to_json_exactly
from tutti_connect.quarantine import as_base64

if TYPE_CHECKING:
    from typing import IO

_types = pa.types
#: Errors of Arrow for a value that Python cannot represent.
_CONVERSION_ERRORS = (ValueError, OverflowError, TypeError, pa.ArrowException)
_PER_S = {"s": 1, "ms": 1000, "us": 1_000_000, "ns": 1_000_000_000}
_DAY_S, _DAY_MS = 86_400, 86_400_000
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_FLOAT_NAMES = {math.inf: "Infinity", -math.inf: "-Infinity"}
_INT64 = 1 << 64
_NOT_IN_CALENDAR = "it is outside the years 1 to 9999"


class ParquetFile:
    """A Parquet file with a checked schema."""

    def __init__(self, file: IO[bytes], extractor: FieldExtractor) -> None:
        """Open the file.

        Raises:
            Unreadable: the schema lacks a column that [record] names, or has a column that cannot be converted to JSON.
            pa.ArrowException, OSError: the file is not a readable Parquet file.
        """
        self._extractor = extractor
        self._table = pq.ParquetFile(file, pre_buffer=False)
        schema = self._table.schema_arrow
        extractor.check(schema.names, "its schema")
        _check_fields(list(schema), "")
        self._int96: list[str] = []
        if any(self._table.schema.column(number).physical_type == "INT96" for number in range(len(self._table.schema))):
            # Nanoseconds wrap around in 64 bits, so read each INT96 column a second time in seconds: both together are exact.
            self._seconds = pq.ParquetFile(file, pre_buffer=False, coerce_int96_timestamp_unit="s")
            self._int96 = [
                one.name for one, other in zip(schema, self._seconds.schema_arrow, strict=True) if one.type != other.type
            ]
            for name in self._int96:
                if not _types.is_timestamp(schema.field(name).type):
                    raise Unreadable(f"its column {name!r} has INT96 inside {schema.field(name).type}: write it as TIMESTAMP")

    def rows(self, at: int) -> Iterator[Rows]:
        """Yield the rows after the first `at` rows."""
        begin = 0
        for group in range(self._table.metadata.num_row_groups):
            end = begin + self._table.metadata.row_group(group).num_rows
            if end > at:
                for batch, seconds in self._batches(group):
                    skipped = min(batch.num_rows, max(0, at - begin))
                    begin += batch.num_rows
                    if skipped < batch.num_rows:
                        left = seconds and {name: column.slice(skipped) for name, column in seconds.items()}
                        yield parquet_rows(batch.slice(skipped), begin - batch.num_rows + skipped, self._extractor, left)
            begin = end

    def _batches(self, group: int) -> Iterator[tuple[pa.RecordBatch, Mapping[str, pa.Array[Any]] | None]]:
        """Yield the batches of a row group, each with its INT96 columns read again in seconds (None without INT96 columns)."""
        batches = self._table.iter_batches(limits.PARQUET_ROWS, row_groups=[group], use_threads=False)
        if not self._int96:
            yield from ((batch, None) for batch in batches)
            return
        seconds = self._seconds.iter_batches(limits.PARQUET_ROWS, row_groups=[group], columns=self._int96, use_threads=False)
        for batch, other in zip(batches, seconds, strict=True):
            if batch.num_rows != other.num_rows:
                raise Unreadable(f"its INT96 columns have other batch sizes than the rest ({other.num_rows}, {batch.num_rows})")
            yield batch, {name: other.column(name) for name in self._int96}


def parquet_rows(
    batch: pa.RecordBatch, at: int, extractor: FieldExtractor, int96_seconds: Mapping[str, pa.Array[Any]] | None = None
) -> Rows:
    """Convert a batch that starts after `at` rows of its file; `int96_seconds` has the INT96 columns of the batch in seconds."""
    names = batch.schema.names
    given = int96_seconds or {}
    columns = [
        _int96_texts(batch.column(number), given[name]) if name in given else _values_of(batch.column(number))
        for number, name in enumerate(names)
    ]
    all_exact = all(exact for _, exact in columns)
    encode = to_json_exactly if any(_needs_exact_json(field.type) for field in batch.schema) else to_json
    # Ignore the configured unit for a timestamp column, whose values are already datetimes or ISO 8601 text.
    form = (
        "iso"
        if extractor.timestamp in names and _types.is_timestamp(batch.schema.field(extractor.timestamp).type)
        else extractor.form
    )
    values: list[bytes | None] = []
    keys: list[bytes | None] = []
    times: list[int] = []
    ends: list[int] = []
    bad: list[BadRow] = []
    for number, fields in enumerate(zip(*(some for some, _ in columns), strict=True), at + 1):
        found = dict(zip(names, fields, strict=True))
        try:
            if not all_exact:
                _check_row(found)
            key, value, stamp = extractor.extract(found, lambda: encode(found), form)  # noqa: B023 - called at once
        except (ValueError, TypeError) as error:
            text = to_json_exactly({name: one.shown if isinstance(one, _InexactValue) else one for name, one in found.items()})
            bad.append(BadRow(number, number - 1, text[: limits.KEPT_BYTES_MAX], str(error), len(text)))
            continue
        values.append(value)
        keys.append(key)
        times.append(stamp)
        ends.append(number)
    return Rows(values, keys, times, ends, list(ends), bad, at + batch.num_rows, at + batch.num_rows)


class _InexactValue(NamedTuple):
    """Placeholder for a field whose value has no exact form.

    Attributes:
        shown: the field for quarantine, with the number or the bytes (in base64) that the file has.
        reason: why the value has no exact form.
    """

    shown: object
    reason: str


def _values_of(column: pa.Array[Any]) -> tuple[list[Any], bool]:
    """Return the values of a column, and True if all are exact; an `_InexactValue` replaces each value without an exact form."""
    try:
        return _exact(column), True
    except _CONVERSION_ERRORS:
        return [_value_of(column.slice(row, 1)) for row in range(len(column))], False


def _value_of(one: pa.Array[Any]) -> object:
    reasons: list[str] = []
    [shown] = _exact_or_stored(one, reasons)
    return _InexactValue(shown, reasons[0]) if reasons else shown


def _exact_or_stored(column: pa.Array[Any], reasons: list[str]) -> list[Any]:
    """Return the values of a column, in exact form if possible, else as the file stores them; append a reason for each of these."""
    try:
        return _exact(column)
    except _CONVERSION_ERRORS as error:
        if len(column) > 1:  # halving finds one inexact value among millions in few conversions
            half = len(column) // 2
            return _exact_or_stored(column.slice(0, half), reasons) + _exact_or_stored(column.slice(half), reasons)
        if column.null_count:
            return [None]  # the value itself is null: another value in the column's dictionary caused the error
        if column.type.num_fields or isinstance(column, pa.ExtensionArray | pa.DictionaryArray):
            return [_nested_parts(column, reasons)]
        return [_stored(column, error, reasons)]


def _nested_parts(one: pa.Array[Any], reasons: list[str]) -> object:
    """Return one nested value (struct, map, list), with each part in exact form if possible, else as the file stores it."""
    kind: Any = one.type
    if isinstance(one, pa.ExtensionArray):
        return _exact_or_stored(one.storage, reasons)[0]
    if isinstance(one, pa.DictionaryArray):
        return _exact_or_stored(one.dictionary_decode(), reasons)[0]
    if isinstance(one, pa.StructArray):
        return {field.name: _exact_or_stored(part, reasons)[0] for field, part in zip(kind, one.flatten(), strict=True)}
    if isinstance(one, pa.MapArray):
        pairs: Any = one.cast(pa.list_(kind.field(0)))
        keys, values = pairs.flatten().flatten()
        return list(zip(_exact_or_stored(keys, reasons), _exact_or_stored(values, reasons), strict=True))
    return _exact_or_stored(one.flatten(), reasons)  # type: ignore[attr-defined]  # of lists


def _stored(one: pa.Array[Any], error: Exception, reasons: list[str]) -> object:
    """Return a value as the file stores it: a text as its bytes in base64, a time as a number."""
    kind = one.type
    if _types.is_string(kind) or _types.is_large_string(kind) or _types.is_string_view(kind):
        text = as_base64(bytes(one.cast(pa.large_binary())[0].as_py())) or ""
        reasons.append(f"it is not UTF-8 ({text[:60]} in base64)")
        return text
    number: int = one.cast(pa.int32() if kind.bit_width == 32 else pa.int64())[0].as_py()
    reasons.append(f"{error if isinstance(error, _Inexact) else _NOT_IN_CALENDAR} ({number} ({kind}))")
    return number


def _check_row(row: Mapping[str, Any]) -> None:
    """Reject a row with a field that has no exact form.

    Raises:
        ValueError: the message has the column and the reason.
    """
    for name, value in row.items():
        if isinstance(value, _InexactValue):
            raise ValueError(f"column {name!r}: {value.reason}")


class _Inexact(ValueError):
    """A value has no exact form; the message gives the reason."""


def _exact(column: pa.Array[Any]) -> list[Any]:
    """Return the values of a column in exact form; raise one of `_CONVERSION_ERRORS` if a value has no exact form."""
    plain, finite = column, True
    for leaf in _leaves(column):
        _check_leaf(leaf)
        finite = finite and not (_types.is_floating(leaf.type) and pc.any(pc.invert(pc.is_finite(leaf))).as_py())
    kind = _plain_type(column.type)
    if kind != column.type:
        plain = column.cast(kind)
    values: list[Any] = plain.to_pylist()
    return values if finite else [_with_float_names(value) for value in values]


def _with_float_names(value: Any) -> Any:
    """Replace NaN and infinity, which JSON lacks, by the texts "NaN", "Infinity" and "-Infinity", also inside nested values."""
    if isinstance(value, float):
        return value if math.isfinite(value) else _FLOAT_NAMES.get(value, "NaN")
    if isinstance(value, dict):
        return {name: _with_float_names(one) for name, one in value.items()}
    if isinstance(value, list | tuple):
        return [_with_float_names(one) for one in value]
    return value


def _leaves(column: pa.Array[Any]) -> Iterator[pa.Array[Any]]:
    """Yield the flat arrays (of numbers, texts or bytes) inside a column, which may be nested."""
    kind = column.type
    if isinstance(column, pa.ExtensionArray):
        yield from _leaves(column.storage)
    elif isinstance(column, pa.DictionaryArray):
        yield from _leaves(column.dictionary)
    elif isinstance(column, pa.StructArray):
        for part in column.flatten():
            yield from _leaves(part)
    elif isinstance(column, pa.MapArray):
        yield from _leaves(column.cast(pa.list_(kind.field(0))))
    elif kind.num_fields:
        yield from _leaves(column.flatten())  # type: ignore[attr-defined]  # of lists
    else:
        yield column


def _check_leaf(leaf: pa.Array[Any]) -> None:
    """Reject values that Arrow converts to another value without an error.

    Raises:
        _Inexact: one of the values has no exact form.
    """
    kind: Any = leaf.type
    if _types.is_time(kind):
        low, high = _range(leaf, pa.int32() if _types.is_time32(kind) else pa.int64())
        if low < 0 or high >= _DAY_S * _PER_S[kind.unit]:
            raise _Inexact("it is not a time of day")
    elif _types.is_date64(kind):
        if any(number is not None and number % _DAY_MS for number in leaf.cast(pa.int64()).to_pylist()):
            raise _Inexact("it is not a whole day")
    elif _types.is_timestamp(kind) and kind.unit == "ns" and kind.tz:
        _check_offsets(leaf)


def _range(leaf: pa.Array[Any], kind: pa.DataType) -> tuple[int, int]:
    bounds: Any = pc.min_max(leaf.cast(kind))
    low, high = bounds["min"].as_py(), bounds["max"].as_py()
    return (0, 0) if low is None else (low, high)


def _check_offsets(leaf: pa.Array[Any]) -> None:
    """Reject nanosecond times in zones with an offset such as +00:19:32, because Arrow writes that offset as +0019."""
    low, high = _range(leaf, pa.int64())
    if min(low + _INT64 // 2, _INT64 // 2 - 1 - high) < _DAY_S * _PER_S["ns"]:
        raise _Inexact("its local time exceeds the range of 64-bit nanoseconds")
    times: Any = leaf
    local: Any = pc.local_timestamp(times)
    offsets: Any = pc.subtract(local.cast(pa.int64()), leaf.cast(pa.int64()))
    minute = 60 * _PER_S["ns"]
    if any(offset is not None and offset % minute for offset in pc.unique(offsets).to_pylist()):
        raise _Inexact("its time zone then had a UTC offset with seconds, which Arrow cannot write: write the time in UTC")


def _plain_type(kind: Any) -> Any:
    """Return a type whose values Python can represent exactly, for a cast of a column: text for times in nanoseconds."""
    if _types.is_timestamp(kind) and kind.unit == "ns":
        return pa.string()
    if _types.is_duration(kind) or (_types.is_time64(kind) and kind.unit == "ns"):
        return pa.int64()
    if _types.is_dictionary(kind):
        return _plain_type(kind.value_type)
    inner = [kind.field(number) for number in range(kind.num_fields)]
    plain = [field.with_type(_plain_type(field.type)) for field in inner]
    if plain == inner:
        return kind
    if _types.is_map(kind):
        return pa.map_(*(field.type for field in plain[0].type))
    if _types.is_struct(kind):
        return pa.struct(plain)
    if _types.is_fixed_size_list(kind):
        return pa.list_(plain[0], kind.list_size)
    return pa.large_list(plain[0]) if _types.is_large_list(kind) else pa.list_(plain[0])


def _int96_texts(nanos: pa.Array[Any], seconds: pa.Array[Any]) -> tuple[list[Any], bool]:
    """Return the times of an INT96 column as text, and True if all are exact; `nanos` has nanoseconds modulo 2**64."""
    found: list[Any] = []
    exact = True
    for wrapped, second in zip(nanos.cast(pa.int64()).to_pylist(), seconds.cast(pa.int64()).to_pylist(), strict=True):
        if wrapped is None or second is None:
            found.append(None)
            continue
        time_ns = second * _PER_S["ns"] + (wrapped - second * _PER_S["ns"]) % _INT64
        time_us, part = divmod(time_ns, 1000)
        if TIME_US_MIN <= time_us <= TIME_US_MAX:
            stamp = (_EPOCH + timedelta(microseconds=time_us)).replace(tzinfo=None)
            found.append(f"{stamp.isoformat(' ', 'microseconds')}{part:03}")
        else:
            shown = f"{Decimal(time_ns).scaleb(-9):f} s since 1970"
            found.append(_InexactValue(shown, f"{_NOT_IN_CALENDAR} ({shown})"))
            exact = False
    return found, exact


def _check_fields(fields: Sequence[pa.Field[Any]], parent: str) -> None:
    """Reject columns that JSON cannot represent: two with one name, or an unknown time zone. `parent` is the enclosing column."""
    names = [field.name for field in fields]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise Unreadable(f"its {f'column {parent!r}' if parent else 'schema'} has the column {twice!r} twice")
    for field in fields:
        _check_type(field.type, parent or field.name)


def _check_type(kind: Any, name: str) -> None:
    if _types.is_timestamp(kind) and not _has_zone(kind):
        raise Unreadable(f"its column {name!r} has the time zone {kind.tz!r}, which is unknown on this host")
    if _types.is_dictionary(kind):
        _check_type(kind.value_type, name)
    elif _types.is_struct(kind):
        _check_fields(list(kind), name)
    else:
        for number in range(kind.num_fields):
            _check_type(kind.field(number).type, name)


def _has_zone(kind: Any) -> bool:
    """True if the timestamp has no time zone, or one that this host knows."""
    try:
        pa.scalar(0, pa.int64()).cast(kind).as_py()
    except (LookupError, ValueError):
        return False
    return True


def _needs_exact_json(kind: Any) -> bool:
    """True if orjson might write a wrong value: for times of day (0.010 s becomes 0.10), and for times in zones other than UTC."""
    if _types.is_timestamp(kind):
        return bool(kind.tz) and kind.tz != "UTC"
    if _types.is_dictionary(kind):
        return _needs_exact_json(kind.value_type)
    return _types.is_time(kind) or any(_needs_exact_json(kind.field(number).type) for number in range(kind.num_fields))
