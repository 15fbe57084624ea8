"""The directory of `tutti dev`: a configuration file and a data directory for each gateway, locked by the running command."""

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
from tutti.runtime.durable_files import make_directory
from tutti.security.user_files import parse_toml

PORTS_A_GATEWAY = 10
PORT_MAX = 65_535 - 3  # highest base port of a gateway, which also uses the next three ports
HOST = "127.0.0.1"

_CONFIG = """\
# Written by `tutti {command}`; also valid for `tutti serve --config`.
name = "{name}"
data = {data}
listen = "{address}"

[group]
name = "{group}"
preset = "local"
members = {{ {members} }}
"""
# Small segments first: three gateways with a few records take 80 MB of disk, and 1.2 GB with the default sizes. The first size is
# not a power of two, so that no segment has the size of the reserve, which a start would then take for a reserve in use.
_SMALL_SEGMENTS = """
[log]
first_segment_bytes = "3MiB"
prepared_segments = 0
"""
_SECURITY = """
[security]
secret_key = "keys/{name}.secret"
public_keys = "keys/group.keys"
"""


class GatewayPaths(NamedTuple):
    """One gateway of this machine: name, client address HOST:P, data directory and configuration file."""

    name: str
    address: str
    data: Path
    config: Path

    @property
    def url(self) -> str:
        """Return the address as a tutti:// URL."""
        return f"tutti://{self.address}"


@contextmanager
def locked(directory: Path) -> Iterator[None]:
    """Create `directory`, and lock it until the block ends, so that no other process changes the files of running gateways.

    Raises:
        DirectoryRefused: another process has locked the directory.
        ConfigError: the directory cannot be created, or is not writable.
    """
    try:
        make_directory(directory)
        # Child processes do not inherit the descriptor (O_CLOEXEC), so the kernel releases the lock when this process ends.
        lock = os.open(directory / LOCK, os.O_RDWR | os.O_CREAT, 0o644)
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise ConfigError(
            f"{directory} cannot be created and written ({reason}): {remedy(error, 'choose another --data')}"
        ) from error
    try:
        _lock(lock, fcntl.LOCK_EX, directory, "`tutti dev`")
        os.ftruncate(lock, 0)
        os.pwrite(lock, f"{os.getpid()}\n".encode(), 0)
        yield
    finally:
        os.close(lock)


def _lock(lock: int, kind: int, directory: Path, owner: str) -> None:
    try:
        fcntl.flock(lock, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        holder = os.read(lock, 32).decode("ascii", "replace").strip() or "unknown"
        message = f"{directory} is in use by {owner}, process {holder}: stop it first, or choose another --data"
        raise DirectoryRefused(message) from None


def write_group(
    directory: Path, names: Sequence[str], port: int, command: str, *, keys: bool = False, small_segments: bool = False
) -> list[GatewayPaths]:
    """Write a configuration file for each gateway into `directory`, and return the paths of the gateways.

    Args:
        directory: absolute path of a directory that this process has locked.
        names: names of the gateways.
        port: base port of the first gateway; each further gateway has a base port that is higher by 10.
        command: name of the calling command, which is also the name of the group.
        keys: True to encrypt the traffic between the gateways. Missing keys are created in the subdirectory `keys`.
        small_segments: True if the log of each gateway begins with small segments, which saves disk space.

    Raises:
        UsageError: a port is above the limit, or the directory holds the data of a group with other members or ports.
        ConfigError: keys cannot be created, for example because `group.keys` lists a gateway whose secret file is missing.
        DirectoryRefused: the configuration of a gateway would change, but the gateway is running in another process.
    """
    last = port + PORTS_A_GATEWAY * (len(names) - 1)
    if last > PORT_MAX:
        raise UsageError(f"--port {port}: the last of {len(names)} gateways would have port {last}; the limit is {PORT_MAX}")
    members = {name: f"{HOST}:{port + PORTS_A_GATEWAY * number}" for number, name in enumerate(names)}
    all_paths = [GatewayPaths(name, address, directory / name, directory / f"{name}.toml") for name, address in members.items()]
    _check_founders(directory, members)
    members_toml = ", ".join(f'{name} = "{address}"' for name, address in members.items())
    if keys:
        _make_keys(directory / "keys", names)
    for paths in all_paths:
        data = orjson.dumps(str(paths.data)).decode()
        text = _CONFIG.format(
            command=command, name=paths.name, data=data, address=paths.address, group=command, members=members_toml
        )
        text += _SMALL_SEGMENTS if small_segments else ""
        _write(paths, text + (_SECURITY.format(name=paths.name) if keys else ""))
    return all_paths


def _make_keys(directory: Path, names: Sequence[str]) -> None:
    from tutti_gateway.transport.keys import SECRET_ENDING, generate

    missing = [name for name in names if not (directory / f"{name}{SECRET_ENDING}").exists()]
    if missing:
        generate(directory, missing)


def _check_founders(directory: Path, members: Mapping[str, str]) -> None:
    """Reject other members or addresses than those of an existing log, because the members of a group change only in its log."""
    for data in sorted(file.parent for file in directory.glob(f"*/{IDENTITY}")):
        founders = _founders(directory / f"{data.name}.toml")
        if not founders or dict(founders) == dict(members):
            continue
        if set(founders) != set(members):
            raise UsageError(
                f"{directory} holds a group of {len(founders)} ({', '.join(sorted(founders))}), not {len(members)}: "
                "members change through the log, with `tutti members add` or `remove`; "
                "start the group with its members, or choose another --data"
            )
        if len(members) > 1:
            first = next(iter(founders.values()))
            raise UsageError(
                f"the gateways in {directory} have the addresses {', '.join(founders.values())}: "
                f"start them with --port {first.rpartition(':')[2]}, or choose another --data"
            )


def removed(all_paths: Sequence[GatewayPaths]) -> list[str]:
    """Return the names of gateways that were removed from the group, according to the log that has the most positions.

    The gateways may be running. A log that cannot be read is skipped.
    """
    from tutti.log.read.reader import LogReader

    most_advanced = LogState()
    for paths in all_paths:
        try:
            with closing(LogReader(paths.data)) as reader:
                most_advanced = max(most_advanced, reader.state(), key=lambda state: state.position)
        except TuttiError:
            continue  # the log does not exist yet, or is unreadable, which its gateway reports when it starts
    members = {voter.name for voter in most_advanced.roster.values()}
    return [paths.name for paths in all_paths if members and paths.name not in members]


def _founders(config: Path) -> dict[str, str]:
    """Return the members in the file `config` as a dict from name to address; empty if the file is missing or invalid."""
    try:
        members = parse_toml(config.read_text())["group"]["members"]
        return {str(name): str(address) for name, address in members.items()}
    except (OSError, ValueError, RecursionError, KeyError, TypeError, AttributeError):
        return {}


def _write(paths: GatewayPaths, text: str) -> None:
    if paths.config.exists() and paths.config.read_text() == text:
        return  # an equal file is not rewritten, because a gateway that has not ended yet may use it
    if (paths.data / LOCK).exists():
        lock = os.open(paths.data / LOCK, os.O_RDONLY)
        try:
            _lock(lock, fcntl.LOCK_SH, paths.data, f"gateway {paths.name}")
        finally:
            os.close(lock)
    paths.config.write_text(text)
