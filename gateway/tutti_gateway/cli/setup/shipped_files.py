"""Reads the files of `conf/` and `examples/`, which the package contains, and writes new files for users.

In a checkout, the folder `shipped` has symbolic links to both folders. In a wheel, `shipped` contains copies of the files.
"""

from __future__ import annotations

import os
from importlib.resources import files
from pathlib import Path

from tutti.errors import ConfigError, remedy
from tutti.runtime.durable_files import make_directory

_SHIPPED = files("tutti_gateway.cli.setup") / "shipped"


def read_shipped(name: str) -> bytes:
    """Return the content of a shipped file, such as `conf/group.toml`."""
    return (_SHIPPED / name).read_bytes()


def shipped_names(directory: str) -> list[str]:
    """Return the names of all files in a shipped directory, such as `examples/python/send.py`, sorted."""
    names = []
    for entry in (_SHIPPED / directory).iterdir():
        if entry.is_dir() and entry.name != "__pycache__":
            names += shipped_names(f"{directory}/{entry.name}")
        elif entry.is_file():
            names.append(f"{directory}/{entry.name}")
    return sorted(names)


def write_files(contents: dict[Path, bytes], *, force: bool) -> None:
    """Write new files and their directories. Without `force`, write none of the files if one of them exists.

    Raises:
        ConfigError: a file exists, or cannot be written.
    """
    existing = [str(path) for path in contents if os.path.lexists(path)]
    if existing and not force:
        more = f" (and {len(existing) - 1} more files)" if len(existing) > 1 else ""
        raise ConfigError(f"{existing[0]} already exists{more}: choose another place with --out, or replace with --force")
    for path, content in contents.items():
        try:
            make_directory(path.parent, 0o777)
            path.write_bytes(content)
        except OSError as error:
            # `makedirs` reports a file in the place of a directory as a file that exists.
            reason = "not a directory" if isinstance(error, FileExistsError) else (error.strerror or str(error)).lower()
            raise ConfigError(f"{path} cannot be written ({reason}): {remedy(error, 'choose another place with --out')}") from error
