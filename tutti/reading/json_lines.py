"""Committed records as JSON lines: the output format of `tutti tail`, `tutti replay` and the connectors."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Callable, Iterator
from typing import Any

import orjson
import pyarrow as pa
import pyarrow.compute as pc

from tutti.reading.range_bounds import time_text


def json_lines(batch: pa.RecordBatch) -> Iterator[bytes]:
    """Yield one JSON line for each record, without the newline. The fields have the order of the batch's columns.

    Keys and values become text if they are UTF-8, and otherwise base64 in a field such as `value_base64`. Times are ISO 8601 in UTC
    with microseconds.
    """
    columns = [_column(name, batch.column(number)) for number, name in enumerate(batch.schema.names)]
    for row in zip(*columns, strict=True):
        yield orjson.dumps(dict(row))


def truncated_json_lines(batch: pa.RecordBatch, bytes_max: int) -> Iterator[bytes]:
    """As `json_lines`, but cut each key and value after `bytes_max` bytes; a field such as `value_bytes` has the full length."""
    columns: dict[str, list[Any]] = {name: batch.column(name).to_pylist() for name in ("key", "value")}
    for number, line in enumerate(json_lines(batch.drop_columns(["headers"]))):
        shown = orjson.loads(line)
        for name, found in columns.items():
            if found[number] is not None and len(found[number]) > bytes_max:
                shown |= _truncated(name, found[number], bytes_max)
        headers = batch.column("headers")[number].as_py() or ()
        shown["headers"] = [{"key": header["key"], **_truncated("value", header["value"], bytes_max)} for header in headers]
        yield orjson.dumps(shown)


def _truncated(name: str, value: bytes | None, bytes_max: int) -> dict[str, object]:
    if value is None or len(value) <= bytes_max:
        return dict([bytes_field(name, value)])
    field, _ = bytes_field(name, value)
    part = value[:bytes_max]
    # `errors="ignore"` drops a UTF-8 character that the cut has split.
    shown = part.decode(errors="ignore") if field == name else b64encode(part).decode()
    return {field: shown, f"{name}_bytes": len(value)}


def values(batch: pa.RecordBatch) -> list[bytes | None]:
    """Return the record values."""
    found: list[bytes | None] = batch.column("value").to_pylist()
    return found


def with_key(batch: pa.RecordBatch, key: bytes | None) -> pa.RecordBatch:
    """Return the records with this key; None returns all records."""
    return batch if key is None else batch.filter(pc.equal(batch.column("key"), pa.scalar(key, pa.binary())))


def _column(name: str, array: Any) -> list[tuple[str, object]]:
    """Return a pair (field name, JSON value) for each row."""
    if name in ("key", "value"):
        return [bytes_field(name, value) for value in array.to_pylist()]
    convert: Callable[[Any], object] | None = None
    if name == "timestamp":
        array, convert = array.cast(pa.int64()), time_text
    elif name == "headers":
        convert = _headers
    found = array.to_pylist()
    return [(name, convert(value)) for value in found] if convert else [(name, value) for value in found]


def _headers(headers: list[dict[str, Any]] | None) -> list[dict[str, object]]:
    return [dict([("key", header["key"]), bytes_field("value", header["value"])]) for header in headers or ()]


def bytes_field(name: str, value: bytes | None) -> tuple[str, str | None]:
    """Return a JSON field for `value`: text if the bytes are UTF-8, else base64 under the name `NAME_base64`."""
    if value is None:
        return name, None
    try:
        return name, value.decode()
    except UnicodeDecodeError:
        return f"{name}_base64", b64encode(value).decode()
