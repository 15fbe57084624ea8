"""The Java that Spark will start."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

from gateway.cli.doctor.machine import Finding

JAVA_MIN = 17
_INSTALL = f"install Java {JAVA_MIN} or newer (Debian: apt-get install openjdk-17-jre-headless), or point JAVA_HOME at one"
_WAIT_S = 20.0


def java() -> Finding:
    """Java as Spark looks for it: that of JAVA_HOME, else the one on PATH."""
    home = os.environ.get("JAVA_HOME")
    command = str(Path(home, "bin", "java")) if home else shutil.which("java")
    if command is None:
        return Finding("java", False, "not found: no JAVA_HOME and no java on PATH", _INSTALL)
    try:
        run = subprocess.run([command, "-version"], capture_output=True, text=True, timeout=_WAIT_S, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        where = f"JAVA_HOME={home}" if home else command
        return Finding("java", False, f"{where} does not start ({type(error).__name__})", _INSTALL)
    found = re.search(r'version "(?:1\.)?(\d+)[^"]*"', run.stderr + run.stdout)
    if run.returncode or not found:
        return Finding("java", False, f"{command} -version ended with {run.returncode} and named no version", _INSTALL)
    return Finding("java", int(found[1]) >= JAVA_MIN, f"{found[0].removeprefix('version ')} at {command}", _INSTALL)
