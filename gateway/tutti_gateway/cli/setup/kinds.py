"""The kinds of files that users name in commands and configurations. `kind_of` guesses the kind of a file from its keys."""

from __future__ import annotations

import math
import os
from importlib import import_module
from operator import attrgetter
from typing import Annotated, Any, NamedTuple

from msgspec import Meta, Struct

from tutti.errors import ConfigError, WrongFile
from tutti.toml.loader import StructReader, parse_tree, read_text
from tutti.toml.mistakes import MISSING, ConfigMistakes, Mistake


class Kind(NamedTuple):
    """A kind of file. Its modules, and with them a connector, are imported only when a file is checked.

    Attributes:
        text: name of the kind with its article, for messages.
        use: what to do with a file of this kind; `{file}` stands for its path.
        struct: `MODULE:NAME` of the struct with the keys of the file.
        load: `MODULE:NAME` of the function that loads and checks the file.
        command: the command that takes the file with --config; "" for a file that is not a configuration.
    """

    text: str
    use: str
    struct: str
    load: str
    command: str = ""


def _configuration(command: str, struct: str, load: str) -> Kind:
    return Kind(f"the configuration of `{command}`", f"run `{command} --config {{file}}`", struct, load, command)


class Tokens(Struct):
    """Keys of a file of tokens."""

    tokens: dict[str, Any] = {}


class PublicKeys(Struct):
    """Keys of a file of public keys."""

    gateways: dict[str, str] = {}


class SecretKey(Struct):
    """Keys of a gateway's secret key file."""

    gateway: str = ""
    public: str = ""
    secret: str = ""


class ClientCredentials(Struct):
    """Keys of a client's credentials file."""

    token: Annotated[str, Meta(extra_json_schema={"examples": ["tutti_..."]})]  # required: PublicKeys lacks only this key
    gateways: dict[str, str] = {}
    certificates: str = ""


_KAFKA, _ZEROMQ = "tutti_connect.kafka.config", "tutti_connect.zeromq.config"
_KEYS, _SECURITY = "tutti_gateway.transport.keys", "in [security] of a gateway's configuration"
KINDS = {
    "gateway": _configuration("tutti serve", "tutti_gateway.config.model:Config", "tutti_gateway.config.loader:load_config"),
    "archive": _configuration("tutti archive run", "tutti.archive.config:Archiving", "tutti.archive.config:load_archiving"),
    "files": _configuration(
        "tutti connect files", "tutti_connect.files.config:SourceConfig", "tutti_connect.files.config:load_source_config"
    ),
    "http": _configuration("tutti connect http", "tutti_connect.http.config:Http", "tutti_connect.http.config:load_http"),
    "kafka-in": _configuration("tutti connect kafka-in", f"{_KAFKA}:SourceConfig", f"{_KAFKA}:load_source_config"),
    "kafka-out": _configuration("tutti connect kafka-out", f"{_KAFKA}:SinkConfig", f"{_KAFKA}:load_sink_config"),
    "zeromq-in": _configuration("tutti connect zeromq-in", f"{_ZEROMQ}:SourceConfig", f"{_ZEROMQ}:load_source_config"),
    "zeromq-out": _configuration("tutti connect zeromq-out", f"{_ZEROMQ}:SinkConfig", f"{_ZEROMQ}:load_sink_config"),
}
KINDS |= {
    "tokens": Kind(
        "a file of tokens",
        f"name it as `tokens` {_SECURITY}; `tutti tokens list --file {{file}}` shows it",
        f"{__name__}:Tokens",
        "tutti.security.tokens:read_tokens",
    ),
    "keys": Kind(
        "a file of public keys",
        f"name it as `public_keys` {_SECURITY}; `tutti keys show {{file}}` shows it",
        f"{__name__}:PublicKeys",
        f"{_KEYS}:read_public",
    ),
    "secret": Kind(
        "the secret key of a gateway",
        f"name it as `secret_key` {_SECURITY}; `tutti keys show {{file}}` shows its public key",
        f"{__name__}:SecretKey",
        f"{_KEYS}:read_secret",
    ),
    "credentials": Kind(
        "a file of client credentials",
        "set TUTTI_TOKEN_FILE={file} where the client runs",
        f"{__name__}:ClientCredentials",
        "tutti.common.credentials:Credentials.read",
    ),
}


def kind_of(path: str, expected: str = "gateway") -> str:
    """Return the name of the kind whose keys match a file best; `expected` if its keys match equally well, or without a valid file.

    A pipe counts as a file of the expected kind, because a pipe can be read only once.
    """
    text = read_text(path)[0] if os.path.isfile(path) else None
    tree, wrong = parse_tree(text) if text is not None else ({}, [])
    if text is None or wrong:
        return expected

    def distance(name: str) -> tuple[float, bool, int]:
        struct = _imported(KINDS[name].struct)
        reading = StructReader(text, struct)
        reading.struct(struct, tree, ())
        missing = sum(mistake.what == MISSING for mistake in reading.mistakes)
        wrong: float = len(reading.mistakes) - missing
        if wrong and name != expected and not KINDS[name].command:
            wrong = math.inf  # these kinds have few keys, so a configuration with many mistakes could look like one of them
        # Missing keys count last, so that an incomplete file, such as an empty one, counts as a file of the expected kind.
        return wrong, name != expected, missing

    return min(KINDS, key=distance)


def other_kind(error: WrongFile) -> str | None:
    """Return the text of an error for a file that is of another kind than the expected one; None if the kind is right."""
    expected = next(name for name, kind in KINDS.items() if error.expected in (name, kind.struct))
    found = kind_of(error.file, expected)
    if found == expected:
        return None
    return f"{error.file} is {KINDS[found].text}, not {KINDS[expected].text}: {KINDS[found].use.format(file=error.file)}"


def mistakes_in(kind: Kind, path: str) -> list[Mistake]:
    """Return the mistakes in a file of this kind."""
    try:
        _imported(kind.load)(path)
    except ConfigMistakes as error:
        return error.mistakes
    except ConfigError as error:
        what, _, do = str(error).removeprefix(path).lstrip(": ").partition(": ")
        return [Mistake("", None, what, do)]
    return []


def _imported(target: str) -> Any:
    """Return the object with the name `MODULE:NAME`."""
    module, _, name = target.partition(":")
    return attrgetter(name)(import_module(module))
