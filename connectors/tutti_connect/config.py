"""What the files of all connectors have in common: checks that say where, what is wrong, and what to write."""

from __future__ import annotations

import tempfile
from pathlib import Path

from msgspec import Meta

from tutti.common.address import parse_url
from tutti.data.names import NAME_BYTES_MAX, is_name
from tutti.errors import ConfigError, remedy
from tutti.runtime.fsync import make_directory
from tutti_connect import limits


def example(*texts: str) -> Meta:
    """Of a text that has to be there: what it may be, for `load_struct` to name where it is missing."""
    return Meta(min_length=1, extra_json_schema={"examples": list(texts)})


def check_connector_name(path: str, name: str) -> None:
    """Refuse a name that producers and readers could not begin with.

    Raises:
        ConfigError: in `path`, what, what to do.
    """
    if not is_name(name) or len(name) > limits.NAME_BYTES_MAX:
        raise ConfigError(f"{path}: name is {name!r}: use 1 to {limits.NAME_BYTES_MAX} letters, digits, '.', '_' and '-'")


def check_topic(path: str, key: str, topic: str) -> None:
    """Refuse what is no name of a topic.

    Raises:
        ConfigError: in `path`, what, what to do.
    """
    if not is_name(topic):
        raise ConfigError(f"{path}: {key} is {topic!r}: use 1 to {NAME_BYTES_MAX} letters, digits, '.', '_' and '-'")


def check_gateways(path: str, url: str) -> None:
    """Refuse what is no address of gateways.

    Raises:
        ConfigError: in `path`, what, what to do.
    """
    try:
        parse_url(url)
    except ConfigError as error:
        raise ConfigError(f"{path}: gateways: {error}") from error


def writable_directory(key: str, directory: str) -> Path:
    """Return a directory that `key` of a configuration names, made where it is missing, after a file was made in it.

    Raises:
        ConfigError: it cannot be made, or files cannot be made in it.
    """
    path = Path(directory)
    try:
        make_directory(path)
        with tempfile.TemporaryFile(dir=path):
            pass  # at the start, rather than with the first record
    except OSError as error:
        advice = remedy(error, "name a directory that can be written")
        raise ConfigError(f"{key} {directory}: {error.strerror}: {advice}") from error
    return path
