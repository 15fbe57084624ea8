"""What a connector from files is told: a TOML file, checked as a gateway's is."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta, Struct, field

from tutti.errors import ConfigError
from tutti.toml.loader import load_struct
from tutti_connect.config import check_connector_name, check_gateways, check_topic, example
from tutti_connect.files import limits

Format = Literal["csv", "jsonl", "lines", "parquet"]
TimeForm = Literal["iso", "s", "ms", "us"]


class Source(Struct, frozen=True):
    """Table [files].

    Attributes:
        directory: where files appear.
        format: of all of them; `.gz` at the end of a name, in upper or lower case, is decompressed (csv, jsonl, lines).
        pattern: of names that are taken, as a shell has them.
        grows: whether files are appended to for ever, as logs are; else each is complete when it appears.
        order: of complete files that are found together: by name, or by time of their last change. Growing ones come in the order
            in which they were first seen.
        after: what becomes of a file when all of it is in the log.
        done: directory for `after = "move"`.
        changed: what to do where a file that was taken is another one later.
        poll_ms: between two looks into the directory, at least.
        quiet_ms: a file that does not grow is taken when it has not changed for so long.
        encoding: of text.
    """

    directory: Annotated[str, example("incoming/orders")]
    format: Annotated[Format, Meta(extra_json_schema={"examples": ["csv"]})]
    pattern: Annotated[str, Meta(min_length=1)] = "*"
    grows: bool = False
    order: Literal["name", "time"] = "name"
    after: Literal["keep", "move", "delete"] = "keep"
    done: str = ""
    changed: Literal["tell", "take"] = "tell"
    poll_ms: Annotated[int, Meta(ge=10, le=3_600_000)] = 1000
    quiet_ms: Annotated[int, Meta(ge=0, le=3_600_000)] = 1000
    encoding: Literal["utf-8", "latin-1", "cp1252"] = "utf-8"


class Columns(Struct, frozen=True):
    """Table [record]: which columns (fields) of a row become what of a record.

    Attributes:
        key: the column that is the key; none without it.
        value: the column that is the value; the whole row as JSON without it.
        timestamp: the column that is the time; the present without it.
        time: how that is written: ISO 8601 (UTC where it has no zone), or a number since 1970.
    """

    key: str = ""
    value: str = ""
    timestamp: str = ""
    time: TimeForm = "iso"


class Csv(Struct, frozen=True):
    """Table [csv].

    Attributes:
        delimiter: between fields.
        columns: names of the columns of files that have no header; the first row is the header without them.
    """

    delimiter: Annotated[str, Meta(min_length=1, max_length=1)] = ","
    columns: list[str] = field(default_factory=list)


class Inflow(Struct, frozen=True):
    """From files into the log.

    Attributes:
        name: the connector's, and its producer's in the log.
        gateways: `tutti://HOST:PORT[,HOST:PORT...]`.
        files: the source.
        state: directory of the ledger, which knows the files that were seen.
        quarantine: directory for rows that no log takes.
        topic: the topic of all records; without it files lie in subdirectories, which are named as their topics.
        record: which columns become what.
        csv: how CSV is written.
        metrics: HOST:PORT of a page for Prometheus; none without it.
        insecure: whether that page may be seen from beyond this host: there is no TLS, nor a token.
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


def load_inflow(path: str) -> Inflow:
    """The configuration in a file.

    Raises:
        ConfigError: the file cannot be read, or is wrong: where, what, what to do.
    """
    config = load_struct(path, Inflow)
    check_connector_name(path, config.name)
    if config.topic:
        check_topic(path, "topic", config.topic)
    check_gateways(path, config.gateways)
    wrong = _wrong(config)
    if wrong:
        raise ConfigError(f"{path}: {wrong}")
    return config


def _wrong(config: Inflow) -> str:
    """The first thing that does not go together; empty if all does."""
    files, record, csv = config.files, config.record, config.csv
    if "/" in files.pattern:
        return f"files.pattern is {files.pattern!r}: it is of names alone; name the directory in files.directory"
    if files.grows and files.format == "parquet":
        return 'files.grows is true and files.format is "parquet": a Parquet file is complete or none; leave grows out'
    if files.grows and files.order != "name":
        return (
            f'files.order is "{files.order}" and files.grows is true: those come in the order in which they appear; leave order out'
        )
    if files.grows and files.after != "keep":
        return f'files.after is "{files.after}" and files.grows is true: a file that grows is never done; leave after out'
    if (files.after == "move") != bool(files.done):
        if files.done:
            return f'files.done is {files.done!r} and files.after is "{files.after}": write after = "move", or leave done out'
        return 'files.after is "move" and files.done is missing: name a directory on the same file system'
    if files.format == "lines" and (record.key or record.value or record.timestamp):
        return '[record] names columns and files.format is "lines": lines have none; use "csv" or "jsonl", or leave them out'
    if files.format != "csv" and csv != Csv():
        return f'[csv] is set and files.format is "{files.format}": leave it out'
    if csv.delimiter in '"\r\n' or not csv.delimiter.isascii():
        return f"csv.delimiter is {csv.delimiter!r}: use one ASCII character that is no quote and no end of a line"
    return _wrong_columns(csv.columns, record)


def _wrong_columns(names: list[str], record: Columns) -> str:
    if not names:
        return ""
    if len(names) > limits.COLUMNS_MAX:
        return f"csv.columns has {len(names)} names: at most {limits.COLUMNS_MAX} are taken"
    twice = [name for name in names if names.count(name) > 1]
    if twice:
        return f"csv.columns has {twice[0]!r} twice: give one of them another name"
    for what in ("key", "value", "timestamp"):
        name = getattr(record, what)
        if name and name not in names:
            return f"record.{what} is {name!r}, which is none of csv.columns: {', '.join(names)}"
    return ""
