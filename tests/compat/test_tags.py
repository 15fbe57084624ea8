"""Proves that tags and fields of messages, events and actions stay as released: they travel, and stand in recorded runs.

A new struct is a new line in tags.txt. A line that changes or goes is a break: give the protocol or the recording a new version.
"""

from __future__ import annotations

from pathlib import Path
from types import ModuleType

import msgspec

from tutti.data import client_protocol
from tutti_gateway.core.protocol import actions, events, messages

LIST = Path(__file__).with_name("tags.txt")
FAMILIES: dict[str, ModuleType] = {"action": actions, "event": events, "message": messages, "client": client_protocol}


def lines() -> list[str]:
    """Family, tag, encoding and fields of every tagged struct, in the order of the bytes."""
    found = []
    for family, module in FAMILIES.items():
        for kind in vars(module).values():
            if not (isinstance(kind, type) and issubclass(kind, msgspec.Struct) and kind.__module__ == module.__name__):
                continue
            config = kind.__struct_config__
            if config.tag is not None:
                shape = "array" if config.array_like else "map"
                found.append(f"{family} {config.tag} {shape}: {' '.join(kind.__struct_encode_fields__)}".rstrip())
    return sorted(found)


def test_tags_and_fields_are_those_of_the_list() -> None:
    assert lines() == LIST.read_text().splitlines()


def test_no_tag_follows_the_name_of_its_class() -> None:
    for module in FAMILIES.values():
        assert module.__file__
        assert "tag=True" not in Path(module.__file__).read_text()
