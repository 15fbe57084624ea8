"""From a TOML file to a `Config`, key by key, so that every mistake is found at once and explained: where, what, what to do."""

from __future__ import annotations

import difflib
import re
import tomllib
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import msgspec
from msgspec import Struct, inspect

from gateway.config.lines import key_lines, line_of
from gateway.config.model import DEFAULT_PRESET, PRESETS, Config, Limits, is_loopback, parse_address
from gateway.core import limits
from gateway.data.addresses import PORT_MAX, Address
from gateway.data.names import check_name
from gateway.errors import ConfigError, UsageError

_NOT_BUILT = {
    ("multicast",): "the multicast transport is not built yet: take the table out, gateways talk over ZeroMQ",
}


KeyPath = tuple[str, ...]
AStruct = TypeVar("AStruct", bound=Struct)


class Mistake(NamedTuple):
    """One thing wrong in a file."""

    key: str
    line: int | None
    what: str
    do: str

    def text(self, file: str) -> str:
        """As a sentence: file and line, key, what is wrong, what to do."""
        place = f"{file}:{self.line}" if self.line else file
        return f"{place}: {self.key + ' ' if self.key else ''}{self.what}: {self.do}"


def load_config(path: str | Path) -> Config:
    """The configuration in a file.

    Raises:
        ConfigError: the file cannot be read or is wrong; the message explains the first mistake and counts the others.
    """
    config, mistakes = check_config(path)
    if config is None:
        more = f" (and {len(mistakes) - 1} more, see `tutti config check {path}`)" if len(mistakes) > 1 else ""
        raise ConfigError(mistakes[0].text(str(path)) + more)
    return config


def check_config(path: str | Path) -> tuple[Config | None, list[Mistake]]:
    """Read a file: the configuration, None if anything is wrong, and every mistake in the order of the lines."""
    try:
        text = Path(path).read_text("utf-8")
    except OSError as error:
        return None, [Mistake("", None, f"cannot be read ({(error.strerror or str(error)).lower()})", "name a TOML file")]
    except UnicodeDecodeError as error:
        return None, [Mistake("", None, f"is not UTF-8 text (byte {error.start})", "save it as UTF-8")]
    return parse_config(text)


def parse_config(text: str) -> tuple[Config | None, list[Mistake]]:
    """As `check_config`, for the text of a file."""
    try:
        tree = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        line = re.search(r"line (\d+)", str(error))
        what = f"is not TOML ({re.sub(r' [(]at .*', '', str(error)).lower()})"
        do = 'write `key = value`, text in "quotes", tables as [name]'
        return None, [Mistake("", int(line[1]) if line else text.count("\n") + 1, what, do)]
    reading = _Reading(text)
    config = reading.struct(Config, _with_preset(tree), ())
    _Relations(reading, config).check()
    mistakes = sorted(reading.mistakes, key=lambda mistake: mistake.line or 0)
    return (None if mistakes else config), mistakes


def _with_preset(tree: dict[str, Any]) -> dict[str, Any]:
    """The tree with [timers] filled from the preset where they say nothing."""
    timers, group = tree.get("timers", {}), tree.get("group")
    if not isinstance(timers, dict):
        return tree
    preset = group.get("preset") if isinstance(group, dict) else None
    known = preset if isinstance(preset, str) and preset in PRESETS else DEFAULT_PRESET
    return tree | {"timers": PRESETS[known] | timers}


class _Reading:
    """Turns a tree of TOML values into structs and collects what does not fit."""

    def __init__(self, text: str) -> None:
        self.mistakes: list[Mistake] = []
        self._wrong: set[KeyPath] = set()
        self._lines = key_lines(text)

    def mistake(self, path: KeyPath, what: str, do: str) -> None:
        self._wrong.add(path)
        self.mistakes.append(Mistake(".".join(path), line_of(self._lines, path), what, do))

    def good(self, *path: str) -> bool:
        """Whether no mistake was found in `path` itself or in what holds it."""
        return not any(path[:length] in self._wrong for length in range(1, len(path) + 1))

    def struct(self, kind: type[AStruct], table: dict[str, Any], path: KeyPath) -> AStruct:
        """A `kind` from a table; a value that is missing or wrong is told and stands as its default, or as the example."""
        fields = {field.name: field for field in msgspec.structs.fields(kind)}
        for key in table.keys() - fields.keys():
            self._unknown((*path, key), list(fields))
        values: dict[str, Any] = {}
        for name, field in fields.items():
            here = (*path, name)
            value = _WRONG
            if name in table:
                value = self._value(field.type, table[name], here)
            elif field.required:
                self.mistake(here, "is missing", f'add it, for example {name} = "{_example(field.type)}"')
            if value is not _WRONG:
                values[name] = value
            elif field.required:
                values[name] = _example(field.type)
        return kind(**values)

    def _value(self, kind: Any, value: Any, path: KeyPath) -> Any:
        if isinstance(kind, type) and issubclass(kind, Struct):
            if isinstance(value, dict):
                return self.struct(kind, value, path)
            self.mistake(path, f"is {_shown(value)}", f"make it a table, [{'.'.join(path)}] with keys below it")
            return _WRONG
        try:
            return msgspec.convert(value, kind)
        except msgspec.ValidationError:
            self.mistake(path, f"is {_shown(value)}", f"it takes {taken(kind)}")
            return _WRONG

    def _unknown(self, path: KeyPath, names: list[str]) -> None:
        if path in _NOT_BUILT:
            what, _, do = _NOT_BUILT[path].partition(": ")
            self.mistake(path, f"cannot be used, {what}", do)
            return
        near = difflib.get_close_matches(path[-1], names, n=1)
        elsewhere = [place for place in _all_keys(Config, ()) if place[-1] == path[-1]]
        if near:
            hint = f"did you mean {near[0]}?"
        elif elsewhere:
            hint = f"it belongs into {_table_text(elsewhere[0][:-1])}"
        else:
            hint = f"{_table_text(path[:-1])} takes {', '.join(names)}"
        self.mistake(path, "is not known", hint)


_WRONG = object()


class _Relations:
    """What must hold between values that are each good alone."""

    def __init__(self, reading: _Reading, config: Config) -> None:
        self._mistake = reading.mistake
        self._good = reading.good
        self._config = config

    def check(self) -> None:
        config = self._config
        self._name(("name",), "gateway", config.name)
        self._name(("group", "name"), "group", config.group.name)
        if not config.data:
            self._mistake(("data",), "is empty", "name a directory")
        listen = self._address(("listen",), config.listen)
        advertise = listen
        if config.advertise is not None:
            advertise = self._address(("advertise",), config.advertise)
        if listen is not None:
            self._reach(listen)
            self._ports(listen)
        if self._good("group", "members"):
            self._members(advertise)
        if self._good("timers", "tick_ms") and config.timers.tick_ms < config.timers.heartbeat_ms:
            what = f"is {config.timers.tick_ms}, below heartbeat_ms = {config.timers.heartbeat_ms}"
            self._mistake(("timers", "tick_ms"), what, "make it at least as long as a heartbeat")
        if self._good("limits", "undecided_bytes") and self._good("log", "disk_low_bytes"):
            self._room(config.limits.undecided_bytes + limits.RESERVED_BYTES, config.log.disk_low_bytes)
        self._memory()

    def _room(self, needed: int, low: int) -> None:
        """What is undecided when the disk runs low has to be written all the same."""
        if needed > low:
            what = f"is {low}, less than undecided_bytes and the reserve need together ({needed})"
            self._mistake(("log", "disk_low_bytes"), what, f"make it at least {needed}, or undecided_bytes smaller")

    def _memory(self) -> None:
        """A gateway above its memory closes all connections, again and again: its bounds together must stay below."""
        names = [field.name for field in msgspec.structs.fields(Limits)]
        values = {name: getattr(self._config.limits, name) for name in names}
        if not all(self._good("limits", name) for name in names):
            return
        needed = limits.node_bytes(**values)
        if needed > limits.NODE_MEMORY_BYTES_MAX:
            asked = ", ".join(f"{name} = {value}" for name, value in values.items())
            what = f"takes {needed} bytes of memory in full use ({asked}), and a gateway has {limits.NODE_MEMORY_BYTES_MAX}"
            self._mistake(("limits",), what, "make one of them smaller")

    def _name(self, path: KeyPath, what: str, name: str) -> None:
        if not self._good(*path):
            return
        try:
            check_name(what, name)
        except UsageError:
            self._mistake(path, f"is {name!r}", "use 1 to 249 letters, digits, '.', '_' or '-'")

    def _address(self, path: KeyPath, text: str) -> Address | None:
        if not self._good(*path):
            return None
        try:
            return parse_address(text)
        except ConfigError:
            self._mistake(path, f"is {text!r}", f"write HOST:PORT with a port from 1 to {PORT_MAX}, 127.0.0.1:7400")
            return None

    def _reach(self, listen: Address) -> None:
        config = self._config
        if not is_loopback(listen.host) and not config.security.insecure:
            do = "listen on 127.0.0.1, or say so with [security] insecure = true where the network is trusted"
            what = f"is {config.listen!r}, which others can reach, and nothing is encrypted or authenticated yet"
            self._mistake(("listen",), what, do)
        if listen.host in {"0.0.0.0", "::"} and config.advertise is None:  # noqa: S104 - looked for, not bound
            self._mistake(("advertise",), f"is missing, and nobody can connect to {listen.host}", "add HOST:PORT for clients")

    def _ports(self, listen: Address) -> None:
        taken_by = {listen.port: "listen"}
        for distance, name in enumerate(("group", "reads", "admin"), 1):
            if not self._good("ports", name):
                continue
            port = getattr(self._config.ports, name) or listen.port + distance
            if port > PORT_MAX:
                self._mistake(("listen",), f"leaves no port for {name} ({port})", f"choose a port up to {PORT_MAX - 3}")
                break
            if port in taken_by:
                self._mistake(("ports", name), f"is {port}, as that of {taken_by[port]} is", "give each a port of its own")
            taken_by.setdefault(port, name)

    def _members(self, own: Address | None) -> None:
        config = self._config
        members = config.group.members
        for name, text in members.items():
            path = ("group", "members", name)
            self._name(path, "gateway", name)
            address = self._address(path, text)
            if name == config.name and address is not None and own is not None and address != own:
                do = "write the same address in both (`advertise` wins over `listen`)"
                self._mistake(path, f"is {text!r} and this gateway is at {str(own)!r}", do)
        if members and config.name not in members and self._good("name"):
            what = f"does not name this gateway ({config.name}) but {', '.join(members)}"
            self._mistake(("group", "members"), what, "add it, or correct `name`")
        if len(members) > 1:
            what = f"names {len(members)} gateways, and groups of several are not built yet"
            self._mistake(("group", "members"), what, "name one gateway, or leave members out")


def taken(kind: Any) -> str:
    """What a field takes, in words."""
    return _taken(inspect.type_info(kind))


def _taken(told: inspect.Type) -> str:
    match told:
        case inspect.Metadata(type=inner):
            return _taken(inner)
        case inspect.IntType():
            return f"a whole number from {told.ge} to {told.le}"
        case inspect.BoolType():
            return "true or false"
        case inspect.LiteralType(values=values):
            return " or ".join(f'"{value}"' for value in values)
        case inspect.DictType():
            return 'a table of names and addresses, { jfk = "127.0.0.1:7400" }'
        case inspect.UnionType(types=parts):
            return " or ".join(_taken(part) for part in parts if not isinstance(part, inspect.NoneType))
        case _:
            return 'text in "quotes"'


def _example(kind: Any) -> str:
    told = inspect.type_info(kind)
    if isinstance(told, inspect.Metadata) and told.extra_json_schema:
        return str(told.extra_json_schema["examples"][0])
    raise TypeError(f"{kind} is required and has no example")


def _all_keys(kind: type[Struct], path: KeyPath) -> list[tuple[str, ...]]:
    keys: list[tuple[str, ...]] = []
    for field in msgspec.structs.fields(kind):
        keys.append((*path, field.name))
        if isinstance(field.type, type) and issubclass(field.type, Struct):
            keys.extend(_all_keys(field.type, (*path, field.name)))
    return keys


def _table_text(path: KeyPath) -> str:
    return f"[{'.'.join(path)}]" if path else "the top of the file, before any [table]"


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
