"""What Spark's Python processes need to read from Tutti, and what of it is not there.

Nothing but the standard library is imported, nothing newer than Python 3.9 used: `tutti doctor` hands this file's text to the
Python that Spark would start, whatever that is and has.
"""

from __future__ import annotations

import json
import platform
import re
import socket
import sys
from functools import lru_cache
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from typing import NamedTuple, TypedDict


class Need(NamedTuple):
    """A range of versions: `least` and newer, and below `below` unless that is ""; as pyproject.toml has it."""

    least: str
    below: str = ""

    def __str__(self) -> str:
        """As a message says it."""
        return f"{self.least} or newer" + (f", below {self.below}" if self.below else "")

    def fits(self, found: str) -> bool:
        """Whether version `found` is in the range."""
        return numbers(self.least) <= numbers(found) and (not self.below or numbers(found) < numbers(self.below))


PYTHON = Need("3.11", "3.14")
SPARK = Need("4.2", "4.4")
JAVA_MIN = 17
#: What reads records imports these.
PACKAGES = {
    "google-crc32c": Need("1.8"),
    "msgspec": Need("0.20"),
    "numpy": Need("2.3"),
    "orjson": Need("3.11"),
    "pyarrow": Need("22"),
}
#: What a job's own functions may need: not being there is no fault, another version is.
OPTIONAL = {"pandas": Need("2.2", "3"), "protobuf": Need("6.33")}
MODULES = ("pyspark_tutti", "tutti_spark", "tutti")
INSTALL = "-m pip install 'tutti-ingest[spark]'"


def numbers(text: str) -> tuple[int, ...]:
    """A version as numbers, for comparison: what stands behind them ("rc1", "+cu12") does not count."""
    found = re.match(r"\d+(\.\d+)*", text)
    return tuple(int(part) for part in found[0].split(".")) if found else ()


class Told(TypedDict):
    """What an interpreter is and has: its version and path, its host, versions of `PACKAGES` and `OPTIONAL` ("" where one is not
    there, "?" where it does not say), and which of `MODULES` it does not find.
    """

    python: str
    executable: str
    host: str
    packages: dict[str, str]
    missing: list[str]


def told(optional: bool = True) -> Told:
    """What this interpreter is and has, `OPTIONAL` packages only if wanted."""
    return {
        "python": platform.python_version(),
        "executable": sys.executable,
        "host": socket.gethostname(),
        "packages": {name: _version(name) for name in (*PACKAGES, *(OPTIONAL if optional else ()))},
        "missing": [name for name in MODULES if find_spec(name) is None],
    }


def misfits(found: Told) -> list[str]:
    """What is wrong with the versions of an interpreter that told so: for each what there is, and what is needed."""
    wrong = [] if PYTHON.fits(found["python"]) else [f"it is Python {found['python']} ({PYTHON} is needed)"]
    for name, need in {**PACKAGES, **OPTIONAL}.items():
        there = found["packages"].get(name, "")
        if not there and name in PACKAGES:
            wrong.append(f"{name} is missing ({need} is needed)")
        elif there not in ("", "?") and not need.fits(there):
            wrong.append(f"{name} is {there} ({need} is needed)")
    return wrong


@lru_cache(maxsize=1)
def check() -> None:
    """Say before anything is read that this process, one of Spark's, cannot read. Asked once a process.

    Raises:
        UsageError: the version of Python, of Spark, or of a library that reads does not fit; each with what is needed.
    """
    from pyspark import __version__ as spark

    found = told(optional=False)  # whoever uses the others asks for them
    wrong = misfits(found)
    if not SPARK.fits(spark):
        wrong.append(f"pyspark is {spark} ({SPARK} is needed)")
    if wrong:
        from tutti.errors import UsageError

        raise UsageError(
            f"{sys.executable} on host {found['host']}, which Spark starts for Python, cannot read from Tutti: {'; '.join(wrong)}. "
            f"Install what is needed there ({sys.executable} {INSTALL}), or set PYSPARK_PYTHON to a Python that has it"
        )


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        pass
    try:  # it may have come without its metadata
        return str(getattr(import_module(name.replace("-", "_")), "__version__", "?"))
    except ImportError:
        return ""


if __name__ == "__main__":
    sys.stdout.write(json.dumps(told()) + "\n")
