"""Options of the data source: parses text into typed, checked values.

The parser accepts the names of options of Spark's Kafka source that have the same meaning. An option is an error if it is wrong,
unknown, given under both names, or not applicable to the kind of read. The message contains the option, its value and the accepted
values.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from difflib import get_close_matches
from typing import TYPE_CHECKING, Literal, TypeVar

from tutti import limits
from tutti.common.gateway_url import parse_url
from tutti.errors import ConfigError, UsageError
from tutti.reading.range_bounds import AFTER_9999, read_time
from tutti.toml.units import TIME_UNITS
from tutti_spark.common import credentials

if TYPE_CHECKING:
    from tutti.common.credentials import Credentials

#: "earliest", "latest", an offset, or an aware datetime (the first record at or after this time).
Position = Literal["earliest", "latest"] | int | datetime
Kind = Literal["batch", "stream"]
T = TypeVar("T")

#: Each option and its accepted values. Errors and docs/how-to/spark.md use the same words.
TAKES: dict[str, str] = {
    "gateways": "an address tutti://HOST:PORT, several hosts separated by commas",
    "path": "data directories separated by commas; a batch read may also name them in load([...])",
    "archive": "the directory or the URL (s3://BUCKET/DIR) of the log's archive",
    "topics": "topic names separated by commas",
    "topicsPattern": "a regular expression that whole topic names match",
    "startingOffset": "earliest, latest or an offset from 0",
    "endingOffset": "earliest, latest or an offset from 0",
    "startingTimestamp": "a time in ISO 8601 with its zone (2013-01-01T05:00:00Z), or milliseconds since 1970",
    "endingTimestamp": "a time in ISO 8601 with its zone (2013-01-01T05:00:00Z), or milliseconds since 1970",
    "columns": "column names separated by commas",
    "maxRecordsPerTrigger": "a number of records from 1",
    "minRecordsPerTrigger": "a number of records from 1",
    "maxTriggerDelay": "a time with its unit (15m, 90s, 500ms), or milliseconds",
    "maxBytesPerTrigger": "a number of bytes from 1",
    "minPartitions": f"a number of partitions from 1 to {limits.SPLITS_MAX}",
    "cut": "tick:N with N from 1",
    "lockstep": "a name, the same for all streams of one query, and used by no other running query",
    "failOnDataLoss": "true or false",
    "queryName": "a name of letters, digits, '.', '_' and '-'",
    "shortCircuit": "true or false",
    **credentials.TAKES,
}
#: Kafka's option names, and Tutti's names for the same options.
ALIASES: dict[str, str] = {
    "subscribe": "topics",
    "subscribePattern": "topicsPattern",
    "startingOffsets": "startingOffset",
    "endingOffsets": "endingOffset",
    "maxOffsetsPerTrigger": "maxRecordsPerTrigger",
    "minOffsetsPerTrigger": "minRecordsPerTrigger",
}
#: Pairs of options that exclude each other in one read; an option of a read also overrides the other option of its table.
_EXCLUSIVE = {
    "topicsPattern": "topics",
    "startingTimestamp": "startingOffset",
    "endingTimestamp": "endingOffset",
    "path": "gateways",
}
_RANGE = "a batch read takes its range from startingOffset and endingOffset"
_LIMITS = f"the option limits a stream's triggers; {_RANGE}"
_STREAM_ONLY = {
    "maxRecordsPerTrigger": _LIMITS,
    "minRecordsPerTrigger": _LIMITS,
    "maxTriggerDelay": _LIMITS,
    "maxBytesPerTrigger": _LIMITS,
    "queryName": "the option names the position of a stream in the log; a batch read has no position",
    "cut": f"the option sets the ends of a stream's micro-batches; {_RANGE}",
    "lockstep": f"the option sets the ends of a stream's micro-batches; {_RANGE}",
}
_STREAM_HAS_NO_END = "a stream has no end: use spark.read, or the trigger availableNow"
_HINTS = {
    "includeheaders": "headers are a column: name it in `columns`, or omit it there",
    "assign": "Tutti has no partitions to assign: use topics",
    "startingoffsetsbytimestamp": "Tutti has one log without partitions: use startingTimestamp",
    "endingoffsetsbytimestamp": "Tutti has one log without partitions: use endingTimestamp",
    "url": "use gateways",
}
_CANONICAL = {name.lower(): name for name in (*TAKES, *ALIASES)}
_INTEGER = re.compile(r"[+-]?\d+\Z")
_CHARACTERS_MAX = 100  # maximum length of an integer, because Python refuses to parse thousands of digits
_DELAY = re.compile(r"(\d+)\s*([a-z]*)\Z")
_DELAY_UNITS = TIME_UNITS | {"": 1, "min": TIME_UNITS["m"]}  # Spark's parser of times accepts these two as well


@dataclass(frozen=True, slots=True)
class ReadOptions:
    """Checked options of a read.

    At most one of `gateways` and `paths` is set. `archive` can be set alone or together with one of these. `start_name` and
    `end_name` are the names that the user wrote for the options of start and end, which can be Tutti's or Kafka's names.
    """

    gateways: str | None = None
    paths: tuple[str, ...] = ()
    archive: str | None = None
    topics: tuple[str, ...] | None = None
    topics_pattern: str | None = None
    start: Position = "earliest"
    end: Position = "latest"
    columns: tuple[str, ...] | None = None
    records_max: int | None = None
    records_min: int | None = None
    delay_ms: int = limits.SPARK_TRIGGER_DELAY_MS
    bytes_max: int | None = None
    partitions_min: int | None = None
    cut_ticks: int | None = None
    lockstep: str | None = None
    fail_on_data_loss: bool = True
    short_circuit: bool = True
    query_name: str = ""
    start_name: str = "startingOffset"
    end_name: str = "endingOffset"
    credentials: Credentials | None = None

    @property
    def origin(self) -> str:
        """The origin of the records (gateways, directories or archive), as text for messages."""
        return self.gateways or ", ".join(self.paths) or self.archive or ""


class _Given(dict[str, str]):
    """The options that the user gave: Tutti's name -> value."""

    def __init__(self) -> None:
        """Create an empty set of options."""
        self.spelled: dict[str, str] = {}

    def name(self, option: str) -> str:
        """Return the name under which the user gave the option: Tutti's or Kafka's."""
        return self.spelled.get(option, option)


def canonical_name(option: str) -> str:
    """Return Tutti's name of an option, given Tutti's or Kafka's name in any case; an unknown name unchanged."""
    name = _CANONICAL.get(option.lower(), option)
    return ALIASES.get(name, name)


def exclusive_key(name: str) -> str:
    """Return the key of an option with Tutti's name `name`. Options that exclude each other have the same key."""
    return _EXCLUSIVE.get(name, name)


def option_error(option: str, value: object, why: str = "") -> UsageError:
    """Return the error for a wrong value of an option, which is given by Tutti's or Kafka's name."""
    reason = f" ({why})" if why else ""
    return UsageError(f"option {option!r} is {value!r}{reason}; it takes {TAKES[ALIASES.get(option, option)]}")


def parse(options: Mapping[str, str], kind: Kind | None = None) -> ReadOptions:
    """Check and convert all options.

    Args:
        options: options as Spark passes them: names in lower case, values as text, and `load([...])` as JSON in `paths`.
        kind: kind of the read (None: unknown, which skips the checks that depend on the kind).

    Raises:
        UsageError: an option is wrong; the message contains the option, the value and the accepted values.
    """
    given = _canonical(options)
    gateways, paths = _origin(given, options)
    if gateways is None and not paths and kind == "stream":
        raise UsageError("a stream cannot read an archive alone: give `gateways` as well, or use a batch read")
    topics, pattern = _topics(given)
    if kind == "batch":
        _reject(given, _STREAM_ONLY)
    elif kind == "stream":
        _reject(given, dict.fromkeys(("endingOffset", "endingTimestamp"), _STREAM_HAS_NO_END))
    least, most = _get(given, "minRecordsPerTrigger", _count), _get(given, "maxRecordsPerTrigger", _count)
    delay_ms = _get(given, "maxTriggerDelay", _delay)
    _check_trigger(given, least, most)
    return ReadOptions(
        gateways=gateways,
        paths=paths,
        archive=_get(given, "archive", _archive),
        topics=topics,
        topics_pattern=pattern,
        start=_position_option(given, "starting", "latest" if kind == "stream" else "earliest"),
        end=_position_option(given, "ending", "latest"),
        columns=_get(given, "columns", _names),
        records_max=most,
        records_min=least,
        delay_ms=limits.SPARK_TRIGGER_DELAY_MS if delay_ms is None else delay_ms,
        bytes_max=_get(given, "maxBytesPerTrigger", _count),
        partitions_min=_get(given, "minPartitions", _partitions),
        cut_ticks=_get(given, "cut", _cut),
        lockstep=_get(given, "lockstep", _name),
        fail_on_data_loss=_get(given, "failOnDataLoss", _boolean) is not False,
        short_circuit=_get(given, "shortCircuit", _boolean) is not False,
        query_name=_get(given, "queryName", _query_name) or "",
        start_name=given.name("startingOffset"),
        end_name=given.name("endingOffset"),
        credentials=_credentials(given),
    )


def _canonical(options: Mapping[str, str]) -> _Given:
    """Return the given options under Tutti's names, without `paths` (from `load([...])`)."""
    given = _Given()
    for key, value in options.items():
        if key.lower() == "paths":
            continue
        name = _CANONICAL.get(key.lower())
        if name is None:
            raise _unknown(key, value)
        canonical = ALIASES.get(name, name)
        if canonical in given:
            raise UsageError(f"options {given.name(canonical)!r} and {name!r} mean the same: give one of them")
        given[canonical] = value
        given.spelled[canonical] = name
    return given


def _unknown(key: str, value: str) -> UsageError:
    low = key.lower()
    if low.startswith("kafka."):
        hint = "it configures Kafka's client; Tutti needs only `gateways`."
    elif low in _HINTS:
        hint = f"{_HINTS[low]}."
    else:
        near = get_close_matches(low, _CANONICAL, 1)
        hint = f"did you mean {_CANONICAL[near[0]]!r}?" if near else "the name is unknown."
    return UsageError(f"option {key!r} ({credentials.redacted(key, value)}) is not accepted: {hint} Options are {', '.join(TAKES)}")


def _credentials(given: _Given) -> Credentials | None:
    if "gateways" not in given:
        _reject(given, dict.fromkeys(credentials.TAKES, "file permissions control reads of directories"))
        return None
    return credentials.credentials_of(given)


def _reject(given: _Given, why: Mapping[str, str]) -> None:
    for option, reason in why.items():
        if option in given:
            value = credentials.redacted(option, given[option])
            raise UsageError(f"option {given.name(option)!r} ({value}) does not apply: {reason}")


def _check_trigger(given: _Given, least: int | None, most: int | None) -> None:
    low, high, delay = "minRecordsPerTrigger", "maxRecordsPerTrigger", "maxTriggerDelay"
    if least is not None and most is not None and least > most:
        raise UsageError(
            f"option {given.name(low)!r} is {least}, more than {given.name(high)!r} ({most}): no batch can reach the minimum"
        )
    if "lockstep" in given:
        _reject(given, {"maxBytesPerTrigger": "streams in lockstep end at one offset, and each stream would count other topics"})
    if delay in given and low not in given:
        raise UsageError(f"option {delay!r} ({given[delay]!r}) limits how long {low!r} holds records back: give {low!r} as well")


def _get(given: _Given, option: str, parser: Callable[[str, str], T]) -> T | None:
    text = given.get(option)
    return None if text is None else parser(given.name(option), text)


def _origin(given: _Given, options: Mapping[str, str]) -> tuple[str | None, tuple[str, ...]]:
    """Return the gateways' url and no directory, or None and the directories.

    Paths are absolute, because workers have a different working directory.
    """
    many = next((value for key, value in options.items() if key.lower() == "paths"), None)
    if "gateways" in given:
        if "path" in given or many is not None:
            raise UsageError(f"options 'gateways' ({given['gateways']!r}) and 'path' exclude each other: give one of them")
        try:
            parse_url(given["gateways"])
        except ConfigError as error:
            raise option_error("gateways", given["gateways"], str(error)) from error
        return given["gateways"].strip(), ()
    if many is not None:
        names = _json_paths(many)
    elif "path" in given:
        names = _names("path", given["path"])
    elif "archive" in given:
        names = ()
    else:
        raise UsageError(
            f"one of the options 'gateways' ({TAKES['gateways']}) and 'path' ({TAKES['path']}) is needed. Spark does not pass "
            "the options of a table with a list of columns, or with options in TBLPROPERTIES: write CREATE TABLE t USING tutti "
            "OPTIONS (...)"
        )
    return None, tuple(os.path.abspath(_local(name)) for name in names)


def _json_paths(text: str) -> tuple[str, ...]:
    """Return the paths of `load([...])`, which Spark passes as a JSON list."""
    try:
        return tuple(str(name) for name in json.loads(text))
    except (ValueError, TypeError, RecursionError) as error:
        raise option_error("path", text[:60], f"not a JSON list ({error})") from error


def local_path(name: str) -> str | None:
    """Return the local path of a directory name or a `file:` URL; None for a URL of another scheme."""
    scheme, separator, rest = name.partition(":")
    if separator and scheme == "file":
        return "/" + rest.lstrip("/")
    return None if "://" in name else name


def _local(name: str) -> str:
    found = local_path(name)
    if found is None:
        raise option_error("path", name, f"{name.partition('://')[0]}:// is not a directory on this machine")
    return found


def _archive(option: str, text: str) -> str:
    """Return a URL unchanged. Return a directory as absolute path, because workers have a different working directory."""
    name = text.strip()
    if not name:
        raise option_error(option, text, "the name is empty")
    found = local_path(name)
    return name if found is None else os.path.abspath(found)


def _topics(given: _Given) -> tuple[tuple[str, ...] | None, str | None]:
    topics = _get(given, "topics", _names)
    if topics is not None:
        from tutti.data.names import check_name

        try:
            for name in topics:
                check_name("topic", name)
        except UsageError as error:
            raise option_error(given.name("topics"), given["topics"], str(error)) from error
    pattern = given.get("topicsPattern")
    if topics is not None and pattern is not None:
        names = [given.name(option) for option in ("topics", "topicsPattern")]
        raise UsageError(f"options {names[0]!r} ({given['topics']!r}) and {names[1]!r} ({pattern!r}) exclude each other")
    if pattern is not None:
        try:
            re.compile(pattern)
        except re.error as error:
            raise option_error(given.name("topicsPattern"), pattern, str(error)) from error
    return topics, pattern


def _names(option: str, text: str) -> tuple[str, ...]:
    if text.lstrip().startswith("["):
        raise option_error(option, text, "a JSON list is not accepted")
    names = tuple(name.strip() for name in text.split(","))
    if not all(names):
        raise option_error(option, text, "a name is empty")
    if len(set(names)) != len(names):
        raise option_error(option, text, "a name occurs twice")
    return names


def _position_option(given: _Given, which: Literal["starting", "ending"], default: Position) -> Position:
    by_offset, by_time = f"{which}Offset", f"{which}Timestamp"
    if by_offset in given and by_time in given:
        offset = given.name(by_offset)
        raise UsageError(f"options {offset!r} ({given[by_offset]!r}) and {by_time!r} ({given[by_time]!r}) exclude each other")
    if by_time in given:
        return _time(by_time, given[by_time])
    return _offset(given.name(by_offset), given[by_offset]) if by_offset in given else default


def _offset(option: str, text: str) -> Position:
    word = text.strip().lower()
    if word == "earliest":
        return "earliest"
    if word == "latest":
        return "latest"
    if word.startswith("{"):
        raise option_error(option, text, "offsets per partition: Tutti has one log, so give one offset")
    if not _INTEGER.match(word):
        raise option_error(option, text, "not an integer")
    return _between(option, text, 0, (1 << 63) - 1)


def _time(option: str, text: str) -> datetime:
    word = text.strip()
    if _INTEGER.match(word):
        millis = _between(option, text, -(1 << 63), (1 << 63) - 1)
        try:
            return datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=millis)
        except OverflowError as error:
            raise option_error(option, text, "out of range") from error
    try:
        time = read_time(word)
    except ValueError as error:
        raise option_error(option, text, "not a time") from error
    except OverflowError as error:
        raise option_error(option, text, AFTER_9999) from error
    if time.tzinfo is None:
        raise option_error(option, text, "the time has no zone")
    return time


def _integer(option: str, text: str, least: int, most: int) -> int:
    word = text.strip()
    if not _INTEGER.match(word):
        raise option_error(option, text, "not an integer")
    return _between(option, text, least, most)


def _between(option: str, text: str, least: int, most: int) -> int:
    """Return the integer in `text`, after a check of its bounds."""
    word = text.strip()
    if len(word) > _CHARACTERS_MAX or not least <= int(word) <= most:
        raise option_error(option, text, "out of range")
    return int(word)


def _count(option: str, text: str) -> int:
    return _integer(option, text, 1, (1 << 63) - 1)


def _delay(option: str, text: str) -> int:
    """Return a delay in milliseconds."""
    found = _DELAY.match(text.strip().lower())
    if found is None or found[2] not in _DELAY_UNITS:
        raise option_error(option, text)
    milliseconds = int(found[1]) * _DELAY_UNITS[found[2]]
    if milliseconds >= 1 << 63:
        raise option_error(option, text, "out of range")
    return milliseconds


def _partitions(option: str, text: str) -> int:
    return _integer(option, text, 1, limits.SPLITS_MAX)


def _cut(option: str, text: str) -> int:
    word, colon, number = text.strip().partition(":")
    if word.lower() != "tick" or not colon:
        raise option_error(option, text)
    return _integer(option, number, 1, (1 << 31) - 1)


def _name(option: str, text: str) -> str:
    if not text.strip():
        raise option_error(option, text, "a name is empty")
    return text.strip()


def _query_name(option: str, text: str) -> str:
    from tutti.data.names import check_name

    try:
        return check_name("query", text.strip())
    except UsageError as error:
        raise option_error(option, text, str(error)) from error


def _boolean(option: str, text: str) -> bool:
    word = text.strip().lower()
    if word not in ("true", "false"):
        raise option_error(option, text)
    return word == "true"
