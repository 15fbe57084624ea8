"""Finds and checks the Java that Spark's commands start, because Spark's own errors about a wrong Java version are unclear."""

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
    """A Java installation: the path of its command, its full version, and its major version."""

    command: str
    version: str
    major: int


def find_java() -> Java:
    """Return the Java that Spark would start: the one in JAVA_HOME, or else the one on PATH.

    Raises:
        Unavailable: Java is missing or does not start; the caller adds advice to the message.
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
        raise Unavailable(f"`{command} -version` exited with status {run.returncode} and printed no version")
    return Java(command, found[1], int(found[2]))


def check(spark_home: Path) -> None:
    """Check, before Spark starts, that the Java that Spark would use is new enough.

    Raises:
        Unavailable: Java is missing or too old.
    """
    if Path(os.environ.get("SPARK_CONF_DIR") or spark_home / "conf", "spark-env.sh").exists():
        return  # spark-env.sh may set another JAVA_HOME, so the Java is unknown
    try:
        found = find_java()
    except Unavailable as error:
        raise Unavailable(f"Spark needs Java, and {error}: {INSTALL}") from error
    if found.major < JAVA_MIN:
        raise Unavailable(f"Spark needs Java {JAVA_MIN} or newer, and {found.command} is {found.version}: {INSTALL}")
