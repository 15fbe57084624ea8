"""What `tutti archive run` is told: a TOML file, checked as a gateway's is."""

from __future__ import annotations

import re
from typing import Annotated, Literal

from msgspec import Meta, Struct

from tutti import limits
from tutti.data.names import check_name
from tutti.errors import ConfigError, UsageError
from tutti.toml.loader import load_struct

_URL = re.compile(r"tutti://\S+")


class Ranges(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Where ranges of the archive end.

    Attributes:
        ticks: a range ends at each tick whose number this divides; with ticks each second 600 is ten minutes in which records came.
        bytes: or before the batch with which it would have more than this, as the log holds it.
    """

    ticks: Annotated[int, Meta(ge=1, le=limits.ARCHIVE_TICKS_MAX)] = limits.ARCHIVE_RANGE_TICKS
    bytes: Annotated[int, Meta(ge=limits.ARCHIVE_RANGE_BYTES_MIN, le=limits.ARCHIVE_RANGE_BYTES_MAX)] = limits.ARCHIVE_RANGE_BYTES


class Archiving(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """From the log into an archive.

    Attributes:
        gateways: `tutti://HOST:PORT[,HOST:PORT...]`.
        archive: a directory, or a URL such as s3://BUCKET/DIR.
        name: of the named reader that says how far the archive is, for [retention] keep_for of gateways.
        ranges: where ranges end.
        priority: "idle" takes what processors have left, so that commits beside it do not wait; "low" takes its share, less than
            others: for a machine that never rests, where it would fall behind.
        lost: what to do where records were removed from the log before they were archived.
        metrics: HOST:PORT of a page for Prometheus; none without it.
        insecure: whether that page may be seen from beyond this host: there is no TLS, nor a token.
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
    """The configuration in a file.

    Raises:
        ConfigError: the file cannot be read, or is wrong: where, what, what to do.
    """
    config = load_struct(path, Archiving)
    try:
        check_name("reader", config.name)
    except UsageError as error:
        raise ConfigError(f"{path}: name is {config.name!r}: {error}") from error
    if not _URL.fullmatch(config.gateways):
        raise ConfigError(f"{path}: gateways is {config.gateways!r}: write tutti://HOST:PORT[,HOST:PORT...]")
    return config
