"""Converts the source's columns to Spark types. Arrow batches must match Spark's schema in order, types and nullability."""

from __future__ import annotations

from collections.abc import Sequence

from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema
from pyspark.sql.types import StructType

from tutti.data.frames.columns import check_columns, schema_of
from tutti.errors import UsageError, invariant


def spark_schema(columns: Sequence[str] | None) -> StructType:
    """Return Spark's schema for these columns (None: all columns).

    Raises:
        UsageError: a column is unknown or occurs twice; the message contains the option and the valid columns.
    """
    try:
        arrow = schema_of(check_columns(columns))
    except UsageError as error:
        raise UsageError(f"option 'columns' is {','.join(columns or ())!r}: {error}") from error
    shape = from_arrow_schema(arrow)
    invariant(to_arrow_schema(shape, timezone="UTC").equals(arrow), f"Spark's {shape} has the Arrow schema {arrow}")
    return shape


def check_requested_schema(asked: StructType, columns: Sequence[str] | None) -> None:
    """Raise UsageError if the schema that the user gave in `.schema(...)` differs from the schema of the source."""
    given = spark_schema(columns)
    if asked != given:
        raise UsageError(
            f".schema({asked.simpleString()}) differs from the records' {given.simpleString()}: use the option 'columns' instead"
        )
