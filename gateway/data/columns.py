"""Record batches as readers and Spark see them: the columns of a body, and those that the frame's place in the log gives.

Only the columns asked for are made; those of the body are views of it. Batches equal the declared schema exactly, as Spark wants it
(order, nullability, plain types).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from difflib import get_close_matches
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from gateway.data.schema import HEADERS, TIMESTAMP
from gateway.errors import UsageError

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
_BODY = {"key": 0, "value": 1, "timestamp": 2, "headers": 3}


def check_columns(columns: Sequence[str] | None) -> tuple[str, ...]:
    """The columns asked for, in the order asked for; None means all.

    Raises:
        UsageError: a name is not known, or comes twice.
    """
    if columns is None:
        return COLUMNS
    chosen = tuple(columns)
    if not chosen:
        raise UsageError(f"no columns were asked for: name some of {', '.join(COLUMNS)}")
    for name in chosen:
        if name not in COLUMNS:
            near = get_close_matches(str(name), COLUMNS, 1)
            hint = f"; did you mean {near[0]!r}?" if near else ""
            raise UsageError(f"column {name!r} is not known{hint} Columns are {', '.join(COLUMNS)}")
    if len(set(chosen)) != len(chosen):
        raise UsageError(f"a column is named twice in {', '.join(chosen)}")
    return chosen


def schema_of(columns: Iterable[str]) -> pa.Schema:
    """The schema of batches with these columns."""
    return pa.schema([SCHEMA.field(name) for name in columns])


class Place:
    """What a frame's place in the log says of its records."""

    __slots__ = ("first_sequence", "gateway", "offset", "producer", "tick", "topic", "view")

    def __init__(self, offset: int, topic: str, gateway: str, producer: str, first_sequence: int, view: int, tick: int) -> None:
        """Offset and first sequence are those of the frame's first record."""
        self.offset = offset
        self.topic = topic
        self.gateway = gateway
        self.producer = producer
        self.first_sequence = first_sequence
        self.view = view
        self.tick = tick


def assemble(body: pa.RecordBatch, place: Place, columns: Sequence[str], schema: pa.Schema) -> pa.RecordBatch:
    """The batch of `columns` (of `schema`, which is `schema_of(columns)`) for one frame's `body`."""
    rows = body.num_rows
    arrays: list[pa.Array[Any]] = []
    for name in columns:
        index = _BODY.get(name)
        if index is not None:
            arrays.append(body.column(index))
        elif name == "offset":
            arrays.append(_counting(place.offset, rows))
        elif name == "sequence":
            arrays.append(_counting(place.first_sequence, rows))
        elif name == "view":
            arrays.append(_constant(place.view, rows))
        elif name == "tick":
            arrays.append(_constant(place.tick, rows))
        else:
            arrays.append(_text(getattr(place, name), rows))
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _counting(start: int, rows: int) -> pa.Array[Any]:
    return pa.Array.from_buffers(pa.int64(), rows, [None, _buffer(np.arange(start, start + rows, dtype=np.int64))])


def _constant(value: int, rows: int) -> pa.Array[Any]:
    return pa.Array.from_buffers(pa.int64(), rows, [None, _buffer(np.full(rows, value, dtype=np.int64))])


def _text(value: str, rows: int) -> pa.Array[Any]:
    data = value.encode()
    offsets = np.arange(0, (rows + 1) * len(data), len(data), dtype=np.int32) if data else np.zeros(rows + 1, np.int32)
    return pa.Array.from_buffers(pa.string(), rows, [None, _buffer(offsets), pa.py_buffer(data * rows)])


def _buffer(values: npt.NDArray[np.signedinteger[Any]]) -> pa.Buffer:
    return pa.py_buffer(values.data)
