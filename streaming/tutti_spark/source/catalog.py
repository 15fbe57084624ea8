"""Tables of Spark's catalog that read the log: `CREATE TABLE flights USING tutti OPTIONS (...)`.

Spark (4.2.0 and 4.3.0) hands a table's options to a Python data source once, when the table is created and its schema is asked for.
A read or a write of the table brings the stored schema and the options of that read or write, and nothing else. So the options of
the table travel in the schema: they are the metadata `tutti` of its first column.

At the creation Spark passes each option twice, as X and as option.X, among properties of the table that are no options
(provider, owner, comment, and those of TBLPROPERTIES).
"""

from __future__ import annotations

import copy
import os
from collections.abc import Mapping
from typing import TYPE_CHECKING

from tutti.errors import UsageError
from tutti_spark.common import credentials
from tutti_spark.common.options import local_path, our_name, slot

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

_KEY = "tutti"
_PREFIX = "option."
_PATHS = ("path", "archive", credentials.FILE)


def created(options: Mapping[str, str]) -> dict[str, str] | None:
    """The options of a table that is created, by our names, None where Spark creates no table.

    Raises:
        UsageError: they hold a secret.
    """
    low = {key.lower(): value for key, value in options.items()}
    if "provider" not in low:
        return None
    given = {key.removeprefix(_PREFIX): value for key, value in low.items() if key.startswith(_PREFIX)}
    if "path" in low:
        given["path"] = low["path"]
    found = {our_name(key): value for key, value in given.items()}
    if credentials.TOKEN in found:
        raise UsageError(
            f"option {credentials.TOKEN!r} {credentials.HIDDEN} is not taken for a table: its schema, which all readers see, would "
            f"have the token in it. Use {credentials.FILE!r}, or give the token to each read of the table: t WITH (token = '...')"
        )
    # Later reads have other working directories.
    return {name: _absolute(value) if name in _PATHS else value for name, value in found.items()}


def carrying(schema: StructType, options: Mapping[str, str]) -> StructType:
    """The schema of a new table, which has the table's options in it."""
    found = copy.deepcopy(schema)
    found.fields[0].metadata = {_KEY: dict(options)}
    return found


def plain(schema: StructType) -> StructType:
    """A schema without metadata."""
    found = copy.deepcopy(schema)
    for field in found.fields:
        field.metadata = {}
    return found


def with_table(options: Mapping[str, str], schema: StructType) -> dict[str, str]:
    """The options of a read or a write, and of the table whose schema it has; its own come before those of the table."""
    kept: dict[str, str] = next((field.metadata[_KEY] for field in schema.fields if _KEY in field.metadata), {})
    given = {slot(our_name(key)) for key in options}
    return {name: value for name, value in kept.items() if slot(name) not in given} | dict(options)


def _absolute(names: str) -> str:
    """Names of directories or files as absolute paths; URLs stay."""
    local = ((name.strip(), local_path(name.strip())) for name in names.split(","))
    return ",".join(name if path is None else os.path.abspath(path) for name, path in local)
