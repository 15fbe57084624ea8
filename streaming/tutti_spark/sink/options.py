"""Options and columns of the sink, and their checks before the write."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from typing import TYPE_CHECKING

from pyspark.sql.types import ArrayType, BinaryType, DataType, StringType, StructType, TimestampType

from tutti.common.gateway_url import parse_url
from tutti.data.names import check_name
from tutti.errors import ConfigError, UsageError
from tutti_spark.common import credentials

if TYPE_CHECKING:
    from tutti.common.credentials import Credentials

WRITE_ID_MAX = 200  # limited, because query id and writeId together form a producer name of at most 249 characters
#: Each option and its accepted values. Errors and docs/how-to/spark.md use the same words.
TAKES: dict[str, str] = {
    "gateways": "an address tutti://HOST:PORT, several hosts separated by commas",
    "topic": "a topic's name",
    **credentials.TAKES,
    "writeId": f"a name of this write, of up to {WRITE_ID_MAX} letters, digits, '.', '_' and '-': the same again writes nothing",
}
_SPARK_OPTIONS = frozenset({"checkpointlocation", "queryname"})  # options that Spark adds by itself
_HINTS = {
    "path": "a write goes to gateways: use start() or save() without a path, and the option `gateways`.",
    "topics": "a write goes to one topic, or to the topics in the column 'topic': use `topic`.",
    "url": "use gateways.",
}
#: Advice for INSERT, insertInto and CREATE TABLE AS SELECT, for which Spark 4.2 and 4.3 omit the table's options.
_TABLE_HINT = (
    "Spark does not pass a table's own options to a write: name them in the statement, "
    "INSERT INTO t WITH ('gateways' = 'tutti://HOST:PORT', 'topic' = 'NAME') SELECT ..., or in "
    "df.writeTo('t').option('gateways', ...).append()"
)
_CANONICAL = {name.lower(): name for name in TAKES}
_TEXT_TYPES = (StringType, BinaryType)
COLUMNS = ("value", "key", "topic", "timestamp", "headers")


@dataclass(frozen=True, slots=True)
class SinkOptions:
    """Destination and identity of a write.

    Attributes:
        gateways: where the records go: tutti://HOST:PORT, several hosts separated by commas.
        topic: topic that gets all records, or None if the column `topic` names the topic of each record.
        write_id: name that makes a repeat of a batch write have no effect; empty if the option `writeId` is not given.
        credentials: token, keys and certificates with which the client connects, or None for a group without security.
    """

    gateways: str
    topic: str | None = None
    write_id: str = ""
    credentials: Credentials | None = None


def parse(options: Mapping[str, str], *, stream: bool) -> SinkOptions:
    """Check all options and return them.

    Raises:
        UsageError: an option is wrong; the message contains the option, the value and the accepted values.
    """
    given: dict[str, str] = {}
    for key, value in options.items():
        low = key.lower()
        if low in _SPARK_OPTIONS:
            continue
        name = _CANONICAL.get(low)
        if name is None:
            near = get_close_matches(low, _CANONICAL, 1)
            hint = _HINTS.get(low) or (f"did you mean {_CANONICAL[near[0]]!r}?" if near else "the name is unknown.")
            value = credentials.redacted(key, value)
            raise UsageError(f"option {key!r} ({value}) is not accepted: {hint} Options of a write are {', '.join(TAKES)}")
        given[name] = value.strip()
    if "gateways" not in given:
        raise UsageError(f"a write needs the option 'gateways': {TAKES['gateways']}. {_TABLE_HINT}")
    try:
        parse_url(given["gateways"])
    except ConfigError as error:
        raise _wrong("gateways", given["gateways"], str(error)) from error
    if stream and "writeId" in given:
        raise UsageError(
            f"option 'writeId' ({given['writeId']!r}) does not apply to a stream: checkpoint and batch number identify its writes"
        )
    for name in ("topic", "writeId"):
        if name in given:
            try:
                check_name(name, given[name])
            except UsageError as error:
                raise _wrong(name, given[name], str(error)) from error
    if len(given.get("writeId", "")) > WRITE_ID_MAX:
        raise _wrong("writeId", given["writeId"], f"{len(given['writeId'])} characters")
    return SinkOptions(given["gateways"], given.get("topic"), given.get("writeId", ""), credentials.credentials_of(given))


def check_columns(schema: StructType, options: SinkOptions, *, overwrite: bool) -> None:
    """Check the columns of the DataFrame to write.

    Raises:
        UsageError: a column is wrong (the message contains its name, its type and the accepted type), or `overwrite` is True.
    """
    if overwrite:
        raise UsageError(
            "the log is append-only: use mode('append') for a batch, outputMode('append') for a stream; write updated rows in "
            "foreachBatch (docs/how-to/spark.md, Writing)"
        )
    types = {field.name: field.dataType for field in schema.fields}
    unknown = [name for name in types if name not in COLUMNS]
    if unknown or len(types) < len(schema.fields):
        what = f"column {unknown[0]!r} is not accepted" if unknown else f"a column occurs twice in {', '.join(schema.names)}"
        raise UsageError(
            f"{what}: a write accepts {', '.join(COLUMNS)}; select these, and put other columns into 'value' (to_json, ...)"
        )
    if "value" not in types:
        raise UsageError(f"the column 'value' is missing: the DataFrame has {', '.join(types) or 'no columns'}")
    for name, kind in types.items():
        accepted_type = _required_type(name, kind)
        if accepted_type:
            raise UsageError(f"column {name!r} has type {kind.simpleString()}; it takes {accepted_type}")
    if options.topic is None and "topic" not in types:
        raise UsageError("the write has no topic: set the option 'topic', or add a column 'topic'")


def _required_type(name: str, kind: DataType) -> str:
    """Return the type that a column must have; empty if `kind` is accepted."""
    if name in ("value", "key"):
        return "" if isinstance(kind, _TEXT_TYPES) else "string or binary"
    if name == "topic":
        return "" if isinstance(kind, StringType) else "string"
    if name == "timestamp":
        return "" if isinstance(kind, TimestampType) else "timestamp"
    pair = kind.elementType if isinstance(kind, ArrayType) else None
    fields = pair.fields if isinstance(pair, StructType) else []
    good = [field.name for field in fields] == ["key", "value"] and isinstance(fields[0].dataType, StringType)
    return "" if good and isinstance(fields[1].dataType, BinaryType) else "array<struct<key:string,value:binary>>"


def _wrong(option: str, value: str, why: str) -> UsageError:
    return UsageError(f"option {option!r} is {value!r} ({why}); it takes {TAKES[option]}")
