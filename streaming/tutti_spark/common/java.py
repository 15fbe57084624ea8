"""Finds and checks the Java that Spark's commands start, because Spark's own errors about a wrong Java are unclear."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import NamedTuple

from tutti.errors import Unavailable
from tutti_spark.common.requirements import JAVA_MIN

INSTALL = f"install Java {JAVA_MIN} or newer (Debian: apt-get install openjdk-{JAVA_MIN}-jre-headless), or point JAVA_HOME at one"
_WAIT_S = 20.0


class Java(NamedTuple):
    """A working Java: its command, its full version, and its major version."""

    command: str
    version: str
    major: int


def find_java() -> Java:
    """Return the Java that Spark would start: the one in JAVA_HOME, else the one on PATH.

    Raises:
        Unavailable: there is no Java, or it does not start; the message contains no advice.
    """
    home = os.environ.get("JAVA_HOME")
    command = shutil.which(str(Path(home, "bin", "java")) if home else "java")
    if command is None:
        raise Unavailable(f"JAVA_HOME={home} has no bin/java" if home else "there is no java on PATH, and JAVA_HOME is not set")
    try:
        run = subprocess.run([command, "-version"], capture_output=True, text=True, timeout=_WAIT_S, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise Unavailable(f"{command} does not start ({type(error).__name__})") from error
    found = re.search(r'version "((?:1\.)?(\d+)[^"]*)"', run.stderr + run.stdout)
    if run.returncode or not found:
        raise Unavailable(f"{command} -version ended with {run.returncode} and named no version")
    return Java(command, found[1], int(found[2]))


def check(spark_home: Path) -> None:
    """Check before Spark starts that its Java is new enough.

    Raises:
        Unavailable: there is no Java, or it is too old.
    """
    if Path(os.environ.get("SPARK_CONF_DIR") or spark_home / "conf", "spark-env.sh").exists():
        return  # this file may set JAVA_HOME
    try:
        found = find_java()
    except Unavailable as error:
        raise Unavailable(f"Spark needs Java, and {error}: {INSTALL}") from error
    if found.major < JAVA_MIN:
        raise Unavailable(f"Spark needs Java {JAVA_MIN} or newer, and {found.command} is {found.version}: {INSTALL}")
