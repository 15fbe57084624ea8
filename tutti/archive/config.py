"""Configuration of `tutti archive run`: one TOML file, with the checks that a gateway's file gets."""

from __future__ import annotations

import re
from typing import Annotated, Literal

from msgspec import Meta, Struct

from tutti import limits
from tutti.data.names import check_name
from tutti.errors import ConfigError, UsageError
from tutti.toml.loader import load_struct
from tutti.toml.units import Size

_URL = re.compile(r"tutti://\S+")


class Ranges(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Limits that end a range of the archive.

    Attributes:
        ticks: end a range at each tick whose number is divisible by this; 600 is ten minutes with one tick per second.
        bytes: largest size of a range, as measured in the log; a range ends before the batch that would exceed this size.
    """

    ticks: Annotated[int, Meta(ge=1, le=limits.ARCHIVE_TICKS_MAX)] = limits.ARCHIVE_RANGE_TICKS
    bytes: Annotated[Size, Meta(ge=limits.ARCHIVE_RANGE_BYTES_MIN, le=limits.ARCHIVE_RANGE_BYTES_MAX)] = limits.ARCHIVE_RANGE_BYTES


class Archiving(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Configuration of an archiver.

    Attributes:
        gateways: addresses of the gateways, as `tutti://HOST:PORT[,HOST:PORT...]`.
        archive: location of the archive, a directory or a URL such as s3://BUCKET/DIR.
        name: name of the reader whose offset the archiver commits; gateways list this name in [retention] keep_for.
        ranges: table [ranges], the limits that end a range.
        priority: "idle" uses only free CPU time, so that commits on the same host do not wait; "low" uses a reduced share, for a
            busy host on which an idle archiver would lag.
        lost: reaction to records that retention removed before they were archived.
        metrics: address of the endpoint for Prometheus, as HOST:PORT; empty to serve no metrics.
        insecure: allow other hosts to read the metrics endpoint, which has neither TLS nor a token.
    """

    gateways: Annotated[str, Meta(min_length=1, extra_json_schema={"examples": ["tutti://127.0.0.1:7400"]})]
    archive: Annotated[str, Meta(min_length=1, extra_json_schema={"examples": ["archive/ingest"]})]
    name: str = "archive"
    ranges: Ranges = Ranges()
    priority: Literal["idle", "low"] = "idle"
    lost: Literal["fail", "skip"] = "fail"
    metrics: str = ""
    insecure: bool = False


def load_archiving(path: str) -> Archiving:
    """Load and check the configuration in a file.

    Raises:
        ConfigError: the file is not readable, or a value is wrong; the message has the value and the remedy.
    """
    config = load_struct(path, Archiving)
    try:
        check_name("reader", config.name)
    except UsageError as error:
        raise ConfigError(f"{path}: name is {config.name!r}: {error}") from error
    if not _URL.fullmatch(config.gateways):
        raise ConfigError(f"{path}: gateways is {config.gateways!r}: write tutti://HOST:PORT[,HOST:PORT...]")
    return config
