"""What a run keeps beside its figures, so that a page can say where they come from; and the room on the disk that it asks for."""

from __future__ import annotations

import os
import platform
import shlex
import shutil
import sys
from collections.abc import Callable, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from benchmarks.figures import Figure

_PACKAGES = ("tutti-ingest", "pyarrow", "pyzmq", "pyspark", "confluent-kafka")
_SPARE_BYTES = 4_000_000_000  # that a run leaves to others on the disk


def about() -> str:
    """The machine, in a line."""
    return f"{platform.machine()}, {os.cpu_count()} processors, Python {platform.python_version()}, Linux {platform.release()}"


def versions() -> dict[str, str]:
    """Of the packages that the figures depend on, those that are here."""
    found = {}
    for name in _PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


def command(module: str, arguments: list[str]) -> str:
    """What was typed: `module` with its arguments, without those that say where files go."""
    kept, skip = [], False
    for one in arguments:
        if skip:
            skip = False
        elif one in ("--json", "--directory"):
            skip = True
        elif not one.startswith(("--json=", "--directory=")):
            kept.append(one)
    return shlex.join(["python", "-m", module, *kept])


def header(module: str, foreign: list[float]) -> dict[str, Any]:
    """Where figures come from.

    Args:
        module: what was run with this process's arguments.
        foreign: what others used meanwhile, processors, several times.
    """
    return {
        "machine": about(),
        "versions": versions(),
        "command": command(module, sys.argv[1:]),
        "foreign_cpu": foreign,
    }


def kept_figures(module: str, foreign: list[float], figures: Sequence[Figure]) -> dict[str, Any]:
    """What a run of figures keeps."""
    return {"kind": "figures", **header(module, foreign), "figures": [one._asdict() for one in figures]}


def refuse_without_room(
    directory: Path, wanted_bytes: int, what: str, free: Callable[[Path], int] = lambda path: shutil.disk_usage(path).free
) -> None:
    """SystemExit where the disk has not so much and some to spare; nothing was begun then."""
    there = free(directory)
    if there < wanted_bytes + _SPARE_BYTES:
        raise SystemExit(
            f"{what} needs {wanted_bytes / 1e9:.1f} GB and {_SPARE_BYTES / 1e9:.0f} GB to spare at {directory}, where"
            f" {there / 1e9:.1f} GB are free: ask for less, or name another disk with --directory"
        )
