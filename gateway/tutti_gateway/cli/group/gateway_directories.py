"""Where gateways of one machine live: a directory kept by one process, and in it a configuration and a data directory for each."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import NamedTuple

import orjson

from tutti.data.log_state import LogState
from tutti.errors import ConfigError, DirectoryRefused, TuttiError, UsageError, remedy
from tutti.log.files.layout import IDENTITY, LOCK
from tutti.runtime.fsync import make_directory
from tutti.security.key_files import parse_toml

PORTS_A_GATEWAY = 10
PORT_MAX = 65_535 - 3  # reads and admin pages have the ports behind it
HOST = "127.0.0.1"

_CONFIG = """\
# Written by `tutti {command}`; `tutti serve --config` takes it too.
name = "{name}"
data = {data}
listen = "{address}"

[group]
name = "{group}"
preset = "local"
members = {{ {members} }}
"""
_SECURITY = """
[security]
secret_key = "keys/{name}.secret"
public_keys = "keys/group.keys"
"""


class Home(NamedTuple):
    """One gateway of this machine: its name, the HOST:P of its clients, its data directory and its configuration file."""

    name: str
    address: str
    data: Path
    config: Path

    @property
    def url(self) -> str:
        """As users name it."""
        return f"tutti://{self.address}"


@contextmanager
def keeping(directory: Path) -> Iterator[None]:
    """Make `directory` and keep it for this process until the block ends: its gateways start again from the files in it.

    Raises:
        DirectoryRefused: another process keeps it.
        ConfigError: it cannot be made, or written.
    """
    try:
        make_directory(directory)
        # The lock is on the open file, which no child inherits: it goes with this process, however that ends.
        lock = os.open(directory / LOCK, os.O_RDWR | os.O_CREAT, 0o644)
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise ConfigError(f"{directory} cannot be made and written ({reason}): {remedy(error, 'name another --data')}") from error
    try:
        _lock(lock, fcntl.LOCK_EX, directory, "`tutti dev`")
        os.ftruncate(lock, 0)
        os.pwrite(lock, f"{os.getpid()}\n".encode(), 0)
        yield
    finally:
        os.close(lock)


def _lock(lock: int, kind: int, directory: Path, whose: str) -> None:
    try:
        fcntl.flock(lock, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        holder = os.read(lock, 32).decode("ascii", "replace").strip() or "unknown"
        said = f"{directory} is in use by {whose}, process {holder}: stop it first, or name another --data"
        raise DirectoryRefused(said) from None


def found_group(directory: Path, names: Sequence[str], port: int, command: str, keys: bool = False) -> list[Home]:
    """Write the configurations of a group's gateways into `directory`: ports `port`, +10, ... on this machine.

    Args:
        directory: absolute; kept by this process.
        names: of the gateways.
        port: base port of the first.
        command: which command asks for it; the group is named by it.
        keys: whether they encrypt what they say to each other; keys that are not there are made in `directory`/keys.

    Raises:
        UsageError: there is no such port, or the directory holds a group of other members.
        ConfigError: there are other keys than those of these gateways.
        DirectoryRefused: a gateway that is none of ours runs from a configuration that says something else.
    """
    last = port + PORTS_A_GATEWAY * (len(names) - 1)
    if last > PORT_MAX:
        raise UsageError(f"--port {port}: the last of {len(names)} gateways would have port {last}; take one up to {PORT_MAX}")
    members = {name: f"{HOST}:{port + PORTS_A_GATEWAY * place}" for place, name in enumerate(names)}
    homes = [Home(name, address, directory / name, directory / f"{name}.toml") for name, address in members.items()]
    _expect_the_same(directory, members)
    listed = ", ".join(f'{name} = "{address}"' for name, address in members.items())
    if keys:
        _make_keys(directory / "keys", names)
    for home in homes:
        data = orjson.dumps(str(home.data)).decode()
        text = _CONFIG.format(command=command, name=home.name, data=data, address=home.address, group=command, members=listed)
        _write(home, text + (_SECURITY.format(name=home.name) if keys else ""))
    return homes


def _make_keys(directory: Path, names: Sequence[str]) -> None:
    from tutti_gateway.transport.keys import SECRET_ENDING, generate

    missing = [name for name in names if not (directory / f"{name}{SECRET_ENDING}").exists()]
    if missing:
        generate(directory, missing)


def _expect_the_same(directory: Path, members: Mapping[str, str]) -> None:
    """Refuse other members than those that a begun log was founded by: a log's members change through the log alone."""
    for data in sorted(file.parent for file in directory.glob(f"*/{IDENTITY}")):
        founders = _founders(directory / f"{data.name}.toml")
        if not founders or dict(founders) == dict(members):
            continue
        if set(founders) != set(members):
            raise UsageError(
                f"{directory} holds a group of {len(founders)} ({', '.join(sorted(founders))}), and {len(members)} are asked for: "
                "members change through the log, with `tutti members add` or `remove`; start it as it was, or name another --data"
            )
        if len(members) > 1:
            first = next(iter(founders.values()))
            raise UsageError(
                f"the gateways in {directory} know each other at {', '.join(founders.values())}: "
                f"start them with --port {first.rpartition(':')[2]}, or name another --data"
            )


def removed(homes: Sequence[Home]) -> list[str]:
    """The names of those who are members no more, as the furthest of their logs has it. Their gateways may run.

    A log that cannot be read says nothing.
    """
    from tutti.log.read.reader import LogReader

    furthest = LogState()
    for home in homes:
        try:
            with closing(LogReader(home.data)) as reader:
                furthest = max(furthest, reader.state(), key=lambda state: state.position)
        except TuttiError:
            continue  # it has not begun, or its gateway will say what is wrong with it
    members = {voter.name for voter in furthest.roster.values()}
    return [home.name for home in homes if members and home.name not in members]


def _founders(config: Path) -> dict[str, str]:
    """The members that a configuration written before names, none if there is no such file."""
    try:
        members = parse_toml(config.read_text())["group"]["members"]
        return {str(name): str(address) for name, address in members.items()}
    except (OSError, ValueError, RecursionError, KeyError, TypeError, AttributeError):
        return {}


def _write(home: Home, text: str) -> None:
    if home.config.exists() and home.config.read_text() == text:
        return  # one that is about to end may still run from it
    if (home.data / LOCK).exists():
        lock = os.open(home.data / LOCK, os.O_RDONLY)
        try:
            _lock(lock, fcntl.LOCK_SH, home.data, f"gateway {home.name}")
        finally:
            os.close(lock)
    home.config.write_text(text)
