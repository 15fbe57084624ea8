"""The columns of record batches as readers and Spark see them: those of a body, and those that the frame's place in the log gives.

Batches equal the declared schema exactly, as Spark wants it (order, nullability, plain types).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from difflib import get_close_matches
from typing import Any

import pyarrow as pa

from tutti.data.frames.schema import HEADERS, TIMESTAMP
from tutti.errors import UsageError

#: Every column, in the order in which they are shown (design, section 10).
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
    """The columns asked for, in the order asked for; None means all.

    Raises:
        UsageError: one text instead of several names, or no names; a name is not known, or comes twice.
    """
    if columns is None:
        return COLUMNS
    if isinstance(columns, str):
        raise UsageError(f"columns is a list of names, not a text: use [{columns!r}]")
    if not isinstance(columns, Iterable):
        raise UsageError(f"columns is a list of names, not {type(columns).__name__} ({columns!r})")
    chosen = tuple(columns)
    if not chosen:
        raise UsageError(f"no columns were asked for: name some of {', '.join(COLUMNS)}")
    for name in chosen:
        if name not in COLUMNS:
            near = get_close_matches(str(name), COLUMNS, 1)
            hint = f"; did you mean {near[0]!r}" if near else ""
            raise UsageError(f"column {name!r} is not known{hint}. Columns are {', '.join(COLUMNS)}")
    if len(set(chosen)) != len(chosen):
        raise UsageError(f"a column is named twice in {', '.join(chosen)}")
    return chosen


def schema_of(columns: Iterable[str]) -> pa.Schema:
    """The schema of batches with these columns."""
    return pa.schema([SCHEMA.field(name) for name in columns])
