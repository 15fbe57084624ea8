"""Tables in Spark's catalog that read the log: `CREATE TABLE flights USING tutti OPTIONS (...)`.

Spark (4.2.0 and 4.3.0) passes the options of a table to a Python data source only when it requests the schema of a new table. For a
read or a write of the table, Spark passes only the stored schema and the options of that read or write. Therefore, the
stored schema contains the options of the table, in the metadata key `tutti` of its first column.

For a new table, Spark passes each option twice, as X and as option.X, mixed with properties that are not options (provider, owner,
comment, TBLPROPERTIES).
"""

from __future__ import annotations

import copy
import os
from collections.abc import Mapping
from typing import TYPE_CHECKING

from tutti.errors import UsageError
from tutti_spark.common import credentials
from tutti_spark.common.options import canonical_name, exclusive_key, local_path

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

_KEY = "tutti"
_PREFIX = "option."
_PATHS = ("path", "archive", credentials.FILE)


def new_table_options(options: Mapping[str, str]) -> dict[str, str] | None:
    """Return the options of a new table under Tutti's names. Return None if Spark does not create a table.

    Raises:
        UsageError: an option contains a secret.
    """
    low = {key.lower(): value for key, value in options.items()}
    if "provider" not in low:
        return None
    given = {key.removeprefix(_PREFIX): value for key, value in low.items() if key.startswith(_PREFIX)}
    if "path" in low:
        given["path"] = low["path"]
    found = {canonical_name(key): value for key, value in given.items()}
    if credentials.TOKEN in found:
        raise UsageError(
            f"option {credentials.TOKEN!r} {credentials.HIDDEN} is refused for a table: its schema, which all readers see, would "
            f"contain the token. Use {credentials.FILE!r}, or pass the token to each read of the table: t WITH (token = '...')"
        )
    # Make paths absolute, because a later read may run in a different working directory.
    return {name: _absolute(value) if name in _PATHS else value for name, value in found.items()}


def with_metadata(schema: StructType, options: Mapping[str, str]) -> StructType:
    """Return a copy of the schema with the options of the table in the metadata of the first column."""
    found = copy.deepcopy(schema)
    found.fields[0].metadata = {_KEY: dict(options)}
    return found


def without_metadata(schema: StructType) -> StructType:
    """Return a copy of the schema without metadata."""
    found = copy.deepcopy(schema)
    for field in found.fields:
        field.metadata = {}
    return found


def merge_table_options(options: Mapping[str, str], schema: StructType) -> dict[str, str]:
    """Return the options of the table, overridden by the `options` of one read or write of the table."""
    kept: dict[str, str] = next((field.metadata[_KEY] for field in schema.fields if _KEY in field.metadata), {})
    given = {exclusive_key(canonical_name(key)) for key in options}
    return {name: value for name, value in kept.items() if exclusive_key(name) not in given} | dict(options)


def _absolute(names: str) -> str:
    """Return a list of names, separated by commas, with absolute paths for files and directories, and unchanged URLs."""
    local = ((name.strip(), local_path(name.strip())) for name in names.split(","))
    return ",".join(name if path is None else os.path.abspath(path) for name, path in local)
