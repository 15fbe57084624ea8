"""What several command lines have in common: arguments, refused before anything is measured, and how they end."""

from __future__ import annotations

import argparse
import math
import os
import signal
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

_INTERRUPTED, _ENDED = 130, 143  # exit codes


def run_command(main: Callable[[], int]) -> NoReturn:
    """Run a command and end with its code. SIGTERM, as of `timeout`, ends it as Ctrl-C does: what it has on the disk goes."""
    signal.signal(signal.SIGTERM, _end)
    try:
        code = main()
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        code = _INTERRUPTED
    raise SystemExit(code)


def _end(*_: object) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # once: what it cleans up is not to be interrupted
    raise SystemExit(_ENDED)


def add_places(parser: argparse.ArgumentParser, kept: str = "") -> None:
    """`--directory`, and `--json` with `kept` as its help."""
    parser.add_argument("--directory", type=directory, default=None, help="where the logs lie: the disk that is measured")
    if kept:
        parser.add_argument("--json", type=new_file, default=None, help=kept)


def directory(text: str) -> Path:
    """A directory that can be written to."""
    path = Path(text)
    if not path.is_dir():
        raise argparse.ArgumentTypeError(f"the directory {text} does not exist")
    try:
        with tempfile.TemporaryFile(dir=path):
            pass
    except OSError as error:
        raise argparse.ArgumentTypeError(f"nothing can be written to {text}: {(error.strerror or str(error)).lower()}") from error
    return path


def new_file(text: str) -> Path:
    """A file that can be written, or written anew."""
    path = Path(text)
    if path.is_dir():
        raise argparse.ArgumentTypeError(f"{text} is a directory")
    directory(str(path.parent))
    if path.exists() and not os.access(path, os.W_OK):
        raise argparse.ArgumentTypeError(f"{text} is there, and cannot be written")
    return path


def amount(text: str) -> float:
    """Parse a finite number above zero."""
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 < value < math.inf:
        raise argparse.ArgumentTypeError(f"{text!r} is not a finite number above zero")
    return value


def count(text: str) -> int:
    """Parse a whole number of at least one."""
    try:
        value = int(text)
    except ValueError:
        value = 0
    if value < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of at least one")
    return value


def a_checkout(text: str) -> Path:
    """A directory that this program is in, too."""
    path = directory(text)
    if not (path / "benchmarks" / "fleet.py").is_file():
        raise argparse.ArgumentTypeError(f"{text} is not a checkout of Tutti: it contains no benchmarks/fleet.py")
    return path
