"""What the files of all connectors have in common: checks that say where, what is wrong, and what to write."""

from __future__ import annotations

import re

from msgspec import Meta

from connectors import limits
from gateway.client.url import parse_url
from gateway.errors import ConfigError

TOPIC_BYTES_MAX = 249
_LETTERS = re.compile(r"[A-Za-z0-9._-]+")


def example(*texts: str) -> Meta:
    """Of a text that has to be there: what it may be, for `load_struct` to name where it is missing."""
    return Meta(min_length=1, extra_json_schema={"examples": list(texts)})


def is_name(text: str, most: int) -> bool:
    """Whether it is 1 to `most` letters, digits, '.', '_' and '-'."""
    return len(text) <= most and _LETTERS.fullmatch(text) is not None


def check_connector_name(path: str, name: str) -> None:
    """Refuse a name that producers and readers could not begin with.

    Raises:
        ConfigError: in `path`, what, what to do.
    """
    if not is_name(name, limits.NAME_BYTES_MAX):
        raise ConfigError(f"{path}: name is {name!r}: use 1 to {limits.NAME_BYTES_MAX} letters, digits, '.', '_' and '-'")


def check_topic(path: str, key: str, topic: str) -> None:
    """Refuse what is no name of a topic.

    Raises:
        ConfigError: in `path`, what, what to do.
    """
    if not is_name(topic, TOPIC_BYTES_MAX):
        raise ConfigError(f"{path}: {key} is {topic!r}: use 1 to {TOPIC_BYTES_MAX} letters, digits, '.', '_' and '-'")


def check_gateways(path: str, url: str) -> None:
    """Refuse what is no address of gateways.

    Raises:
        ConfigError: in `path`, what, what to do.
    """
    try:
        parse_url(url)
    except ConfigError as error:
        raise ConfigError(f"{path}: gateways: {error}") from error
