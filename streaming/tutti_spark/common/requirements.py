"""Version requirements of Spark's Python processes, and a check of the current interpreter.

`tutti doctor` runs the text of this file in the interpreter that Spark would start, which may be old and have no packages. So this
file imports only the standard library, and uses no feature newer than Python 3.9.
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
    """A range of versions from `least` up to, but without, `below` ("": no upper bound). pyproject.toml has the same ranges."""

    least: str
    below: str = ""

    def __str__(self) -> str:
        """Return the text for messages."""
        return f"{self.least} or newer" + (f", below {self.below}" if self.below else "")

    def fits(self, found: str) -> bool:
        """Return True if version `found` is in the range."""
        return numbers(self.least) <= numbers(found) and (not self.below or numbers(found) < numbers(self.below))


PYTHON = VersionRange("3.11", "3.14")
SPARK = VersionRange("4.2", "4.4")
JAVA_MIN = 17
#: Packages that a process needs to read records.
PACKAGES = {
    "google-crc32c": VersionRange("1.8"),
    "msgspec": VersionRange("0.20"),
    "numpy": VersionRange("2.3"),
    "orjson": VersionRange("3.11"),
    "pyarrow": VersionRange("22"),
}
#: Packages that the functions of a job may need. They may be missing, but a version outside of the range is an error.
OPTIONAL = {"pandas": VersionRange("2.2", "3"), "protobuf": VersionRange("6.33")}
MODULES = ("pyspark_tutti", "tutti_spark", "tutti")


def numbers(text: str) -> tuple[int, ...]:
    """Return a version as a tuple of numbers for comparison, without suffixes such as "rc1" or "+cu12"."""
    found = re.match(r"\d+(\.\d+)*", text)
    return tuple(int(part) for part in found[0].split(".")) if found else ()


class InterpreterReport(TypedDict):
    """Versions and packages of a Python interpreter.

    Attributes:
        python, executable, host: the interpreter's version and path, and the name of its host.
        packages: versions of `PACKAGES` and `OPTIONAL`; "" for a missing package, "?" for an unknown version.
        missing: those of `MODULES` that the interpreter does not find.
    """

    python: str
    executable: str
    host: str
    packages: dict[str, str]
    missing: list[str]


def describe_interpreter(optional: bool = True) -> InterpreterReport:
    """Return the versions of this interpreter and its packages; with `optional`, also of the `OPTIONAL` packages."""
    return {
        "python": platform.python_version(),
        "executable": sys.executable,
        "host": socket.gethostname(),
        "packages": {name: _version(name) for name in (*PACKAGES, *(OPTIONAL if optional else ()))},
        "missing": [name for name in MODULES if find_spec(name) is None],
    }


def version_errors(found: InterpreterReport) -> list[str]:
    """Return one message for each version in the report that does not meet the requirements."""
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
        UsageError: the version of Python, of Spark, or of a required package is wrong; the message contains the required versions.
    """
    from pyspark import __version__ as spark

    found = describe_interpreter(optional=False)  # only a job imports optional packages, so do not check them here
    wrong = version_errors(found)
    if not SPARK.fits(spark):
        wrong.append(f"pyspark is {spark} ({SPARK} is needed)")
    if wrong:
        from tutti.errors import UsageError, install_remedy

        raise UsageError(
            f"{sys.executable} on host {found['host']}, which Spark starts for Python, cannot read from Tutti: {'; '.join(wrong)}. "
            f"On that host, {install_remedy('spark', sys.executable)}; or set PYSPARK_PYTHON to a Python that has them"
        )


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        pass
    try:  # a package without metadata may still be importable
        return str(getattr(import_module(name.replace("-", "_")), "__version__", "?"))
    except ImportError:
        return ""


if __name__ == "__main__":
    sys.stdout.write(json.dumps(describe_interpreter()) + "\n")
