"""What the files of all connectors have in common: checks that say where, what is wrong, and what to write."""

from __future__ import annotations

from msgspec import Meta

from connectors import limits
from gateway.client.url import parse_url
from gateway.data.names import NAME_BYTES_MAX, is_name
from gateway.errors import ConfigError


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
