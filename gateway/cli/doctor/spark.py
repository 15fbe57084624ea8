"""Looks at what Spark needs: pyspark, the Python that it starts its workers with, and whether a small job really runs."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version

import orjson

from gateway.cli.doctor.machine import Finding
from gateway.errors import UsageError

VERSIONS = ("4.2", "4.3")
_INSTALL = f"{sys.executable} -m pip install 'tutti-ingest[spark]'"
_TRIAL_WAIT_S = 180.0
_PYTHON_WAIT_S = 30.0

#: Run by the Python that a user's Spark starts: what its workers have, and whether Spark finds the data source.
_TRIAL = """\
import json, sys
from pyspark.sql import SparkSession
spark = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").config("spark.log.level", "ERROR") \\
    .config("spark.driver.host", "127.0.0.1").config("spark.driver.bindAddress", "127.0.0.1").getOrCreate()
def look(_):
    import sys
    missing = []
    for name in ("pyarrow", "streaming", "pyspark_tutti"):
        try:
            __import__(name)
        except ImportError as error:
            missing.append(str(error))
    return [(sys.executable, ".".join(map(str, sys.version_info[:3])), missing)]
worker = spark.sparkContext.parallelize([0], 1).flatMap(look).collect()[0]
try:
    spark.read.format("tutti").load()
    source = "loaded without options"
except Exception as error:
    source = str(error)
spark.stop()
print("TRIAL " + json.dumps({"worker": worker, "source": source}))
"""


def pyspark() -> Finding:
    """Whether pyspark is here, in a version that is supported."""
    try:
        found = version("pyspark")
    except PackageNotFoundError:
        return Finding("pyspark", False, "not installed (gateways and clients do without)", _INSTALL)
    return Finding("pyspark", found.startswith(VERSIONS), found, f"{_INSTALL}: versions {' and '.join(VERSIONS)} are supported")


def python_of_workers() -> Finding:
    """The Python that Spark, started from this shell, starts for its workers, and whether it has what it needs."""
    from streaming.launch import missing_modules, worker_python

    subject = "python of Spark's workers"
    python = worker_python()
    said = "PYSPARK_PYTHON" if os.environ.get("PYSPARK_PYTHON") else "python3 on PATH, as PYSPARK_PYTHON is not set"
    do = f"export PYSPARK_PYTHON={sys.executable}   (or once for this environment: {sys.executable} -m streaming.launch --install)"
    try:
        missing = missing_modules(python)
        found = _version_of(python)
    except (UsageError, OSError, subprocess.SubprocessError) as error:
        return Finding(subject, False, f"{said}: {error}", do)
    here = ".".join(map(str, sys.version_info[:2]))
    text = f"{python} {found} ({said})"
    if missing:
        return Finding(subject, False, f"{text} lacks {', '.join(missing)}", do)
    return Finding(subject, found.startswith(here + "."), text, f"{do}: driver and workers need one version, and this is {here}")


def trial() -> Finding:
    """Start Spark for a moment, as `tutti demo` does, and look from inside of a worker."""
    from streaming.launch import spark_environment

    subject = "a trial of Spark"
    try:
        environment = os.environ | spark_environment()
        run = _run_trial(environment)
    except UsageError as error:
        return Finding(subject, False, str(error), "mend what is wrong above first")
    except subprocess.TimeoutExpired:
        return Finding(subject, False, f"did not end within {_TRIAL_WAIT_S:.0f} s", "mend what is wrong above first")
    lines = [line for line in run.stdout.splitlines() if line.startswith("TRIAL ")]
    if not lines:
        words = [line for line in run.stderr.strip().splitlines() if line.strip()]
        return Finding(
            subject, False, f"ended with {run.returncode}: {words[-1] if words else 'it said nothing'}", "see the lines above"
        )
    told = orjson.loads(lines[0].removeprefix("TRIAL "))
    python, found, missing = told["worker"]
    text = f"workers run {python} {found}"
    if missing:
        return Finding(subject, False, f"{text}: {'; '.join(missing)}", f"export PYSPARK_PYTHON={sys.executable}")
    if "gateways" not in told["source"]:
        return Finding(subject, False, f"{text}, and the format tutti is not found: {told['source'][:200]}", _INSTALL)
    return Finding(subject, True, f"{text} and find the format tutti")


def _run_trial(environment: Mapping[str, str]) -> subprocess.CompletedProcess[str]:
    """Run it, and leave nothing of it behind: pyspark's JVM ignores Ctrl-C, and outlives a Python that is killed alone."""
    command = [sys.executable, "-c", _TRIAL]
    with subprocess.Popen(
        command,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as process:
        try:
            out, err = process.communicate(timeout=_TRIAL_WAIT_S)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
    return subprocess.CompletedProcess(command, process.returncode, out, err)


def _version_of(python: str) -> str:
    code = "import platform; print(platform.python_version())"
    return subprocess.run([python, "-c", code], capture_output=True, text=True, timeout=_PYTHON_WAIT_S, check=True).stdout.strip()
