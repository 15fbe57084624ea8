"""Configuration checks that all connectors share. Each error message has the file, the problem and the remedy."""

from __future__ import annotations

import tempfile
from pathlib import Path

from msgspec import Meta

from tutti.common.gateway_url import parse_url
from tutti.data.names import NAME_BYTES_MAX, is_name
from tutti.errors import ConfigError, remedy
from tutti.runtime.durable_files import make_directory
from tutti_connect import limits


def example(*texts: str) -> Meta:
    """Return the metadata of a required setting; if the setting is missing, the error of `load_struct` shows the examples."""
    return Meta(min_length=1, extra_json_schema={"examples": list(texts)})


def check_connector_name(path: str, name: str) -> None:
    """Check the name of a connector, which is the prefix of the names of its producers and readers.

    Raises:
        ConfigError: the name is invalid; the message has the file `path` and the remedy.
    """
    if not is_name(name) or len(name) > limits.NAME_BYTES_MAX:
        raise ConfigError(f"{path}: name is {name!r}: use 1 to {limits.NAME_BYTES_MAX} letters, digits, '.', '_' and '-'")


def check_topic(path: str, key: str, topic: str) -> None:
    """Check that the value `topic` of the setting `key` is a valid topic name.

    Raises:
        ConfigError: the name is invalid; the message has the file `path` and the remedy.
    """
    if not is_name(topic):
        raise ConfigError(f"{path}: {key} is {topic!r}: use 1 to {NAME_BYTES_MAX} letters, digits, '.', '_' and '-'")


def check_gateways(path: str, url: str) -> None:
    """Check the URL of the gateways.

    Raises:
        ConfigError: the URL is invalid; the message has the file `path` and the remedy.
    """
    try:
        parse_url(url)
    except ConfigError as error:
        raise ConfigError(f"{path}: gateways: {error}") from error


def writable_directory(key: str, directory: str) -> Path:
    """Create a directory unless it exists, check that files can be written to it, and return its path.

    Args:
        key: the setting with the path of the directory, for error messages.
        directory: path of the directory.

    Raises:
        ConfigError: the directory cannot be created, or is not writable.
    """
    path = Path(directory)
    try:
        make_directory(path)
        with tempfile.TemporaryFile(dir=path):
            pass  # writing works: a wrong directory must fail at the start and not at the first record
    except OSError as error:
        advice = remedy(error, "choose a writable directory")
        raise ConfigError(f"{key} {directory}: {error.strerror}: {advice}") from error
    return path
