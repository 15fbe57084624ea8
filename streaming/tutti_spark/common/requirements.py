"""Version requirements of Spark's Python processes, and a check of the current interpreter.

This file imports only the standard library, and uses no feature newer than Python 3.9. The reason: `tutti doctor` runs the text of
this file in the interpreter that Spark would start. That interpreter may be old and have no packages.
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


class VersionRange(NamedTuple):
    """A range of versions: `least` or newer, and below `below` unless that is empty. pyproject.toml has the same ranges."""

    least: str
    below: str = ""

    def __str__(self) -> str:
        """Return the text for messages."""
        return f"{self.least} or newer" + (f", below {self.below}" if self.below else "")

    def fits(self, found: str) -> bool:
        """True if version `found` is in the range."""
        return numbers(self.least) <= numbers(found) and (not self.below or numbers(found) < numbers(self.below))


PYTHON = VersionRange("3.11", "3.14")
SPARK = VersionRange("4.2", "4.4")
JAVA_MIN = 17
#: Packages that reading records needs.
PACKAGES = {
    "google-crc32c": VersionRange("1.8"),
    "msgspec": VersionRange("0.20"),
    "numpy": VersionRange("2.3"),
    "orjson": VersionRange("3.11"),
    "pyarrow": VersionRange("22"),
}
#: Packages that a job's own functions may need: they may be missing, but must not have a version outside of the range.
OPTIONAL = {"pandas": VersionRange("2.2", "3"), "protobuf": VersionRange("6.33")}
MODULES = ("pyspark_tutti", "tutti_spark", "tutti")
INSTALL = "-m pip install 'tutti-ingest[spark]'"


def numbers(text: str) -> tuple[int, ...]:
    """Return a version as numbers for comparison, without suffixes such as "rc1" or "+cu12"."""
    found = re.match(r"\d+(\.\d+)*", text)
    return tuple(int(part) for part in found[0].split(".")) if found else ()


class InterpreterReport(TypedDict):
    """Versions and packages of a Python interpreter.

    Attributes:
        python, executable, host: the interpreter's version and path, and the name of its host.
        packages: versions of `PACKAGES` and `OPTIONAL`; "" for a missing package, "?" for an unknown version.
        missing: the `MODULES` that the interpreter does not find.
    """

    python: str
    executable: str
    host: str
    packages: dict[str, str]
    missing: list[str]


def describe_interpreter(optional: bool = True) -> InterpreterReport:
    """Describe this interpreter, with `OPTIONAL` packages if requested."""
    return {
        "python": platform.python_version(),
        "executable": sys.executable,
        "host": socket.gethostname(),
        "packages": {name: _version(name) for name in (*PACKAGES, *(OPTIONAL if optional else ()))},
        "missing": [name for name in MODULES if find_spec(name) is None],
    }


def version_errors(found: InterpreterReport) -> list[str]:
    """Return a message for each version of a described interpreter that does not meet the requirements."""
    wrong = [] if PYTHON.fits(found["python"]) else [f"it is Python {found['python']} ({PYTHON} is needed)"]
    for name, required in {**PACKAGES, **OPTIONAL}.items():
        installed = found["packages"].get(name, "")
        if not installed and name in PACKAGES:
            wrong.append(f"{name} is missing ({required} is needed)")
        elif installed not in ("", "?") and not required.fits(installed):
            wrong.append(f"{name} is {installed} ({required} is needed)")
    return wrong


@lru_cache(maxsize=1)
def check() -> None:
    """Check once per process that this Spark process can read from Tutti.

    Raises:
        UsageError: the version of Python, of Spark, or of a required package is wrong; the message has the required versions.
    """
    from pyspark import __version__ as spark

    found = describe_interpreter(optional=False)  # optional packages are not needed here, because a job imports them itself
    wrong = version_errors(found)
    if not SPARK.fits(spark):
        wrong.append(f"pyspark is {spark} ({SPARK} is needed)")
    if wrong:
        from tutti.errors import UsageError

        raise UsageError(
            f"{sys.executable} on host {found['host']}, which Spark starts for Python, cannot read from Tutti: {'; '.join(wrong)}. "
            f"Install the requirements there ({sys.executable} {INSTALL}), or set PYSPARK_PYTHON to a Python that has them"
        )


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        pass
    try:  # a package may be present without metadata
        return str(getattr(import_module(name.replace("-", "_")), "__version__", "?"))
    except ImportError:
        return ""


if __name__ == "__main__":
    sys.stdout.write(json.dumps(describe_interpreter()) + "\n")
