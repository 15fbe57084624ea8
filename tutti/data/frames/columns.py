"""Columns of the record batches that readers and Spark receive.

Some columns come from the body of a frame, and the other columns come from the frame's header.
The batches match the declared schema exactly (order, nullability, plain types), as Spark requires.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from difflib import get_close_matches
from typing import Any

import pyarrow as pa

from tutti.data.frames.schema import HEADERS, TIMESTAMP
from tutti.errors import UsageError

#: All columns in their default order (design, section 10).
_FIELDS: list[pa.Field[Any]] = [
    pa.field("offset", pa.int64(), nullable=False),
    pa.field("topic", pa.string(), nullable=False),
    pa.field("key", pa.binary(), nullable=True),
    pa.field("value", pa.binary(), nullable=True),
    pa.field("timestamp", TIMESTAMP, nullable=False),
    pa.field("headers", HEADERS, nullable=True),
    pa.field("gateway", pa.string(), nullable=False),
    pa.field("producer", pa.string(), nullable=False),
    pa.field("sequence", pa.int64(), nullable=False),
    pa.field("view", pa.int64(), nullable=False),
    pa.field("tick", pa.int64(), nullable=False),
]
SCHEMA: pa.Schema = pa.schema(_FIELDS)
COLUMNS: tuple[str, ...] = tuple(SCHEMA.names)


def check_columns(columns: Sequence[str] | None) -> tuple[str, ...]:
    """Return the selected columns as a tuple, in the given order. None selects all columns.

    Raises:
        UsageError: `columns` is a string, is not a list of names, is empty, or contains an unknown or repeated name.
    """
    if columns is None:
        return COLUMNS
    if isinstance(columns, str):
        raise UsageError(f"columns must be a list of names, not a text: use [{columns!r}]")
    if not isinstance(columns, Iterable):
        raise UsageError(f"columns must be a list of names, not {type(columns).__name__} ({columns!r})")
    chosen = tuple(columns)
    if not chosen:
        raise UsageError(f"columns is empty: choose from {', '.join(COLUMNS)}")
    for name in chosen:
        if name not in COLUMNS:
            near = get_close_matches(str(name), COLUMNS, 1)
            hint = f"did you mean {near[0]!r}? The" if near else "the"
            raise UsageError(f"column {name!r} is not known: {hint} columns are {', '.join(COLUMNS)}")
    if len(set(chosen)) != len(chosen):
        raise UsageError(f"a column appears twice in {', '.join(chosen)}: give each column only once")
    return chosen


def schema_of(columns: Iterable[str]) -> pa.Schema:
    """Return the schema of batches with these columns."""
    return pa.schema([SCHEMA.field(name) for name in columns])
