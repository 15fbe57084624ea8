"""Loads a `Config` from a TOML file. The struct types check single values, and `Relations` checks rules between values."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from tutti.errors import ConfigError
from tutti.security.certificates import check_certificate
from tutti.security.tokens import read_tokens
from tutti.toml.lines import key_lines, line_of
from tutti.toml.loader import StructReader, parse_tree, read_text
from tutti.toml.mistakes import ConfigMistakes, KeyPath, Mistake
from tutti_gateway.config.model import DEFAULT_PRESET, PRESETS, Config
from tutti_gateway.config.relations import Relations


def load_config(path: str | Path) -> Config:
    """Return the configuration in a file.

    Raises:
        ConfigMistakes: the file is unreadable or invalid; the message explains the first mistake and counts the others.
    """
    config, mistakes = check_config(path)
    if config is None:
        more = f" (and {len(mistakes) - 1} more, see `tutti config check {path}`)" if len(mistakes) > 1 else ""
        raise ConfigMistakes(str(path), mistakes, Config, mistakes[0].text(str(path)) + more)
    return config


def check_config(path: str | Path) -> tuple[Config | None, list[Mistake]]:
    """Return the configuration in a file, and the file's mistakes in line order. With a mistake, the configuration is None."""
    text, mistakes = read_text(path)
    if text is None:
        return None, mistakes
    config, mistakes = parse_config(text)
    if config is None or not (config.security.has_keys or config.security.has_tls):
        return config, mistakes
    config = _resolve_paths(config, Path(path).parent)
    found = _mistake_in_keys(config, key_lines(text))
    return (None, [found]) if found else (config, [])


def parse_config(text: str) -> tuple[Config | None, list[Mistake]]:
    """Return the configuration in `text`, and its mistakes. The key, token and certificate files are not read."""
    tree, wrong = parse_tree(text)
    if wrong:
        return None, wrong
    reading = StructReader(text, Config)
    config = reading.struct(Config, _with_preset(tree), ())
    Relations(reading, config).check()
    mistakes = sorted(reading.mistakes, key=lambda mistake: mistake.line or 0)
    return (None if mistakes else config), mistakes


def _resolve_paths(config: Config, directory: Path) -> Config:
    """Return the configuration with the paths of its key, token and certificate files resolved relative to `directory`."""
    security = config.security
    files = ("secret_key", "public_keys", "tokens", "tls_certificate", "tls_key")
    paths = {name: str(directory / path) for name in files if (path := getattr(security, name)) is not None}
    return msgspec.structs.replace(config, security=msgspec.structs.replace(security, **paths))


def _mistake_in_keys(config: Config, lines: dict[KeyPath, int]) -> Mistake | None:
    security = config.security
    kind = "keys"
    try:
        if security.has_keys:
            from tutti_gateway.transport.keys import Keyring  # noqa: PLC0415 - a gateway without keys does not load PyNaCl

            Keyring.open(security.secret_key or "", security.public_keys or "", config.name)
        if security.tokens is not None:
            kind = "tokens"
            read_tokens(security.tokens)
        if security.has_tls:
            kind = "a certificate"
            check_certificate(security.tls_certificate or "", security.tls_key or "")
    except ConfigError as error:
        what, _, do = str(error).partition(": ")
        return Mistake("security", line_of(lines, ("security",)), f"names {kind} that cannot be used ({what})", do)
    return None


def _with_preset(tree: dict[str, Any]) -> dict[str, Any]:
    """Return the TOML tree, with the timers of the preset added as far as the file does not set them."""
    timers, group = tree.get("timers", {}), tree.get("group")
    if not isinstance(timers, dict):
        return tree
    preset = group.get("preset") if isinstance(group, dict) else None
    known = preset if isinstance(preset, str) and preset in PRESETS else DEFAULT_PRESET
    return tree | {"timers": PRESETS[known] | timers}
