"""Configuration of the files connector: one TOML file."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta, Struct, field

from tutti.errors import ConfigError
from tutti.toml.loader import load_struct
from tutti.toml.units import Milliseconds
from tutti_connect.config import check_connector_name, check_gateways, check_topic, example
from tutti_connect.files import limits

Format = Literal["csv", "jsonl", "lines", "parquet"]
TimeForm = Literal["iso", "s", "ms", "us"]


class Source(Struct, frozen=True):
    """Table [files].

    Attributes:
        directory: directory in which files appear.
        format: format of all files; text files whose name ends in `.gz` (any case) are decompressed.
        pattern: shell pattern of the file names to copy.
        grows: whether programs append to the files, as they do to logs; if false, each file is complete when it appears.
        order: order of complete files that one scan finds, by name or by modification time. The connector reads growing files in
            the order in which it first found them.
        after: action on a file that is completely in the log.
        done: target directory for `after = "move"`.
        changed: action on a file that changed after it was copied.
        poll_ms: shortest time between two scans of the directory.
        quiet_ms: a complete file is copied after it has been unchanged for this time.
        encoding: encoding of text files.
    """

    directory: Annotated[str, example("incoming/orders")]
    format: Annotated[Format, Meta(extra_json_schema={"examples": ["csv"]})]
    pattern: Annotated[str, Meta(min_length=1)] = "*"
    grows: bool = False
    order: Literal["name", "time"] = "name"
    after: Literal["keep", "move", "delete"] = "keep"
    done: str = ""
    changed: Literal["tell", "take"] = "tell"
    poll_ms: Annotated[Milliseconds, Meta(ge=10, le=3_600_000)] = 1000
    quiet_ms: Annotated[Milliseconds, Meta(ge=0, le=3_600_000)] = 1000
    encoding: Literal["utf-8", "latin-1", "cp1252"] = "utf-8"


class Columns(Struct, frozen=True):
    """Table [record]: mapping of a row's columns (fields) to a record.

    Attributes:
        key: column of the key; by default, records have no key.
        value: column of the value; by default, the value is the whole row as JSON.
        timestamp: column of the timestamp; by default, the connector uses the current time.
        time: format of the timestamp, either ISO 8601 (UTC if it has no zone) or a number of s, ms or us since 1970.
    """

    key: str = ""
    value: str = ""
    timestamp: str = ""
    time: TimeForm = "iso"


class Csv(Struct, frozen=True):
    """Table [csv].

    Attributes:
        delimiter: separator of the fields.
        columns: column names for files without a header; by default the first row is the header.
    """

    delimiter: Annotated[str, Meta(min_length=1, max_length=1)] = ","
    columns: list[str] = field(default_factory=list)


class SourceConfig(Struct, frozen=True):
    """Configuration of the files connector.

    Attributes:
        name: name of the connector and of its producer in the log.
        gateways: addresses of the gateways, as `tutti://HOST:PORT[,HOST:PORT...]`.
        files: table [files], the source.
        state: directory of the ledger, which records the known files.
        quarantine: directory for rows that the connector or the log rejects.
        topic: topic of all records. If it is missing, each subdirectory has the name of the topic of its files.
        record: table [record], the mapping of columns to a record.
        csv: table [csv], the CSV dialect.
        metrics: address of the endpoint for Prometheus, as HOST:PORT; without it, the connector serves no metrics.
        insecure: allow other hosts to reach the metrics endpoint, which has neither TLS nor a token.
    """

    name: Annotated[str, example("orders")]
    gateways: Annotated[str, example("tutti://127.0.0.1:7400")]
    files: Source
    state: Annotated[str, example("state/orders")]
    quarantine: Annotated[str, example("quarantine/orders")]
    topic: Annotated[str, Meta(min_length=1)] = ""
    record: Columns = Columns()
    csv: Csv = Csv()
    metrics: str = ""
    insecure: bool = False


def load_source_config(path: str) -> SourceConfig:
    """Load and check the configuration file of the files connector.

    Raises:
        ConfigError: the file is unreadable or wrong; the message has the key, the problem and the remedy.
    """
    config = load_struct(path, SourceConfig)
    check_connector_name(path, config.name)
    if config.topic:
        check_topic(path, "topic", config.topic)
    check_gateways(path, config.gateways)
    contradiction = _contradiction(config)
    if contradiction:
        raise ConfigError(f"{path}: {contradiction}")
    return config


def _contradiction(config: SourceConfig) -> str:
    """Return the error text for the first two settings that exclude each other, or "" if no settings do."""
    files, record, csv = config.files, config.record, config.csv
    if "/" in files.pattern:
        return f"files.pattern is {files.pattern!r}: the pattern applies to names only; set the directory in files.directory"
    if files.grows and files.format == "parquet":
        return 'files.grows is true and files.format is "parquet": a Parquet file cannot grow; remove grows'
    if files.grows and files.order != "name":
        return (
            f'files.order is "{files.order}" and files.grows is true: '
            "growing files come in the order in which they appear; remove order"
        )
    if files.grows and files.after != "keep":
        return f'files.after is "{files.after}" and files.grows is true: a growing file is never complete; remove after'
    if (files.after == "move") != bool(files.done):
        if files.done:
            return f'files.done is {files.done!r} and files.after is "{files.after}": write after = "move", or remove done'
        return 'files.after is "move", but files.done is missing: set a directory on the same file system'
    if files.format == "lines" and (record.key or record.value or record.timestamp):
        return '[record] names columns, but files.format is "lines", which has none; use "csv" or "jsonl", or remove the columns'
    if files.format != "csv" and csv != Csv():
        return f'[csv] is set, but files.format is "{files.format}": remove [csv]'
    if csv.delimiter in '"\r\n' or not csv.delimiter.isascii():
        return f"csv.delimiter is {csv.delimiter!r}: use one ASCII character other than a quote or a line break"
    return _column_contradiction(csv.columns, record)


def _column_contradiction(names: list[str], record: Columns) -> str:
    if not names:
        return ""
    if len(names) > limits.COLUMNS_MAX:
        return f"csv.columns has {len(names)} names: at most {limits.COLUMNS_MAX} are allowed"
    twice = [name for name in names if names.count(name) > 1]
    if twice:
        return f"csv.columns has {twice[0]!r} twice: rename one of them"
    for what in ("key", "value", "timestamp"):
        name = getattr(record, what)
        if name and name not in names:
            return f"record.{what} is {name!r}, which is not in csv.columns: {', '.join(names)}"
    return ""
