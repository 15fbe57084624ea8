"""The kinds of configuration files with their commands. `kind_of` guesses the kind of a file from its keys."""

from __future__ import annotations

import os
from importlib import import_module
from typing import Any, NamedTuple

from tutti.errors import ConfigError
from tutti.toml.loader import StructReader, parse_tree, read_text
from tutti.toml.mistakes import MISSING, ConfigMistakes, Mistake


class Kind(NamedTuple):
    """A kind of configuration file. `check` imports the module, and with it the connector, only when a file is checked.

    Attributes:
        command: the command that takes the file.
        module: the module with the struct and with the function that loads the file.
        struct: name of the struct with the keys of the file.
        load: name of the function that loads and checks the file.
    """

    command: str
    module: str
    struct: str
    load: str


KINDS = {
    "gateway": Kind("tutti serve", "tutti_gateway.config.loader", "Config", "load_config"),
    "archive": Kind("tutti archive run", "tutti.archive.config", "Archiving", "load_archiving"),
    "files": Kind("tutti connect files", "tutti_connect.files.config", "SourceConfig", "load_source_config"),
    "http": Kind("tutti connect http", "tutti_connect.http.config", "Http", "load_http"),
    "kafka-in": Kind("tutti connect kafka-in", "tutti_connect.kafka.config", "SourceConfig", "load_source_config"),
    "kafka-out": Kind("tutti connect kafka-out", "tutti_connect.kafka.config", "SinkConfig", "load_sink_config"),
    "zeromq-in": Kind("tutti connect zeromq-in", "tutti_connect.zeromq.config", "SourceConfig", "load_source_config"),
    "zeromq-out": Kind("tutti connect zeromq-out", "tutti_connect.zeromq.config", "SinkConfig", "load_sink_config"),
}


def kind_of(path: str) -> str:
    """Return the name of the kind whose keys match a file best; "gateway" if its keys match equally well, or without a valid file.

    A pipe counts as the file of a gateway, because a pipe can be read only once.
    """
    text = read_text(path)[0] if os.path.isfile(path) else None
    tree, wrong = parse_tree(text) if text is not None else ({}, [])
    if text is None or wrong:
        return "gateway"

    def distance(name: str) -> tuple[int, bool, int]:
        struct = getattr(import_module(KINDS[name].module), KINDS[name].struct)
        reading = StructReader(text, struct)
        reading.struct(struct, tree, ())
        missing = sum(mistake.what == MISSING for mistake in reading.mistakes)
        # Missing keys count last, so that an incomplete file, such as an empty one, counts as a gateway's file.
        return len(reading.mistakes) - missing, name != "gateway", missing

    return min(KINDS, key=distance)


def mistakes_in(kind: Kind, path: str) -> list[Mistake]:
    """Return the mistakes in a file of this kind."""
    load: Any = getattr(import_module(kind.module), kind.load)
    try:
        load(path)
    except ConfigMistakes as error:
        return error.mistakes
    except ConfigError as error:
        what, _, do = str(error).removeprefix(f"{path}: ").partition(": ")
        return [Mistake("", None, what, do)]
    return []
