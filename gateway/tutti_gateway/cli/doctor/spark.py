"""Looks at what Spark needs: pyspark, the Python that it starts its workers with, and whether a small job really runs."""

from __future__ import annotations

import contextlib
import inspect
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING

import orjson

from tutti.errors import UsageError
from tutti_gateway.cli.doctor.machine import Finding

if TYPE_CHECKING:
    from tutti_spark.common.requirements import Told

LOCAL = "local[1]"
_INSTALL = f"{sys.executable} -m pip install 'tutti-ingest[spark]'"
_SOCKET = "spark.python.unix.domain.socket.enabled"
_TRIAL_WAIT_S = 180.0

#: Run by the Python that a user's Spark starts: what its workers have, and whether Spark finds the data source.
_TRIAL = """\
import json, sys
from pyspark.sql import SparkSession
master, text = sys.argv[1:]
settings = {"spark.ui.enabled": "false", "spark.log.level": "ERROR", "spark.python.unix.domain.socket.enabled": "true"}
if master.startswith("local["):
    settings |= {"spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1"}
def look(_):
    import time
    scope = {"__name__": "needs"}
    exec(text, scope)
    time.sleep(0.5)  # so that each executor gets some
    return [scope["told"]()]
told = {"workers": [], "source": "", "failed": ""}
try:
    spark = SparkSession.builder.appName("tutti doctor").master(master).config(map=settings).getOrCreate()
    tasks = 2 * spark.sparkContext.defaultParallelism if not master.startswith("local[") else 1
    told["workers"] = spark.sparkContext.parallelize(range(tasks), tasks).flatMap(look).collect()
except Exception as error:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()] or [repr(error)]
    told["failed"] = next((line for line in reversed(lines) if "Caused by" in line or "Error: " in line), lines[0])
else:
    try:
        spark.read.format("tutti").load()
        told["source"] = "loaded without options"
    except Exception as error:
        told["source"] = str(error)
    spark.stop()
print("TRIAL " + json.dumps(told))
"""


def pyspark() -> Finding:
    """Whether pyspark is here, in a version that is supported, and no other Spark is named."""
    from tutti_spark.common.requirements import SPARK
    from tutti_spark.launch import spark_home

    try:
        found = version("pyspark")
    except PackageNotFoundError:
        return Finding("pyspark", False, "not installed (gateways and clients do without)", _INSTALL)
    if not SPARK.fits(found):
        return Finding("pyspark", False, found, f"{_INSTALL}: {SPARK} is needed")
    home = os.environ.get("SPARK_HOME")
    if home is None or Path(home).resolve() == spark_home().resolve():
        return Finding("pyspark", True, found)
    there = next((file.stem.rpartition("-")[2] for file in Path(home, "jars").glob("spark-core_*.jar")), "none")
    do = f"take Spark {found} in SPARK_HOME, or unset it: pyspark and the Spark that it starts are to be of one version"
    return Finding("pyspark", there == found, f"{found}, and SPARK_HOME={home} has Spark {there}", do)


def python_of_workers() -> Finding:
    """The Python that Spark, started from this shell, starts for its workers, and whether it has what it needs."""
    from tutti_spark.launch import ask, worker_python

    subject = "python of Spark's workers"
    python = worker_python()
    said = "PYSPARK_PYTHON" if os.environ.get("PYSPARK_PYTHON") else "python3 on PATH, as PYSPARK_PYTHON is not set"
    do = (
        f"export PYSPARK_PYTHON={sys.executable}   (or once for this environment: {sys.executable} -m tutti_spark.launch --install)"
    )
    try:
        found = ask(python)
    except UsageError as error:
        return Finding(subject, False, f"{said}: {error}", do)
    here = ".".join(map(str, sys.version_info[:2]))
    text = f"{python} {found['python']} ({said})"
    wrong = _wrong(found)
    if wrong:
        return Finding(subject, False, f"{text}: {wrong}", do)
    text += " with " + ", ".join(f"{name} {found['packages'].get(name) or 'none'}" for name in ("pyarrow", "pandas"))
    same = found["python"].startswith(here + ".")
    return Finding(subject, same, text, f"{do}: driver and workers need one version, and this is {here}")


def settings() -> Finding:
    """What of Spark's settings, in this shell and in its file, has the format run otherwise than expected."""
    from tutti_spark.launch import spark_home, worker_python

    subject = "settings of Spark"
    register = "call pyspark_tutti.register(spark) in the job: what is registered runs with PYSPARK_PYTHON"
    by_itself = "a format that Spark finds by itself"
    driver, worker = os.environ.get("PYSPARK_DRIVER_PYTHON"), worker_python()
    if driver and _home(driver) != _home(worker):
        found = f"PYSPARK_DRIVER_PYTHON={driver}: {by_itself} runs with that, on executors too, and not with {worker}"
        return Finding(subject, False, found, f"unset it, or {register}")
    try:
        home = Path(os.environ.get("SPARK_HOME") or spark_home())
    except UsageError:
        return Finding(subject, True, "none, as there is no Spark")
    file = Path(os.environ.get("SPARK_CONF_DIR") or home / "conf", "spark-defaults.conf")
    lines = file.read_text("utf-8", "replace").splitlines() if file.is_file() else []
    given = dict(line.strip().replace("=", " ", 1).split(None, 1) for line in lines if len(line.replace("=", " ", 1).split()) > 1)
    python = given.get("spark.pyspark.python", worker).strip()
    if _home(python) != _home(worker):
        found = f"spark.pyspark.python is {python} in {file}: {by_itself} does not heed it, and runs with {worker}"
        return Finding(subject, False, found, f"export PYSPARK_PYTHON={python}, or {register}")
    fast = given.get(_SOCKET, "false").strip() == "true"
    slow = "" if fast else f"; {_SOCKET} is not true in {file}: each task takes 40 ms longer where nobody sets it"
    return Finding(subject, True, f"nothing stands in the way{slow}")


def trial(master: str = LOCAL) -> Finding:
    """Start Spark for a moment and look from inside of its workers: here as `tutti demo` does, on a cluster as this shell would."""
    from tutti_spark.common import requirements
    from tutti_spark.launch import spark_environment

    subject = "a trial of Spark"
    try:
        run = _run_trial(os.environ | (spark_environment() if master == LOCAL else {}), master, inspect.getsource(requirements))
    except UsageError as error:
        return Finding(subject, False, str(error), "mend what is wrong above first")
    except subprocess.TimeoutExpired:
        do = "mend what is wrong above first" if master == LOCAL else f"see whether {master} has workers with a core and 1 GiB free"
        return Finding(subject, False, f"did not end within {_TRIAL_WAIT_S:.0f} s", do)
    lines = [line for line in run.stdout.splitlines() if line.startswith("TRIAL ")]
    if not lines:
        words = [line for line in run.stderr.strip().splitlines() if line.strip()]
        return Finding(
            subject, False, f"ended with {run.returncode}: {words[-1] if words else 'it said nothing'}", "see the lines above"
        )
    told = orjson.loads(lines[0].removeprefix("TRIAL "))
    if told["failed"]:
        return Finding(subject, False, f"on {master}: {told['failed'][:300]}", "mend what is wrong above first")
    workers: dict[str, Told] = {
        f"{worker['executable']} {worker['python']} on {worker['host']}": worker for worker in told["workers"]
    }
    for text, worker in workers.items():
        if wrong := _wrong(worker):
            do = f"there: {worker['executable']} {requirements.INSTALL}; or set PYSPARK_PYTHON to a good Python on every host"
            return Finding(subject, False, f"workers run {text}: {wrong}", do)
    text = "workers run " + " and ".join(workers)
    if "gateways" not in told["source"]:
        return Finding(subject, False, f"{text}, and the format tutti is not found: {told['source'][:200]}", _INSTALL)
    return Finding(subject, True, f"{text}, and find the format tutti")


def _wrong(found: Told) -> str:
    """What an interpreter lacks, "" if nothing."""
    from tutti_spark.common.requirements import misfits

    lacks = [f"it lacks {', '.join(found['missing'])}"] if found["missing"] else []
    return "; ".join(lacks + misfits(found))


def _home(python: str) -> Path:
    """The directory of a command: an environment has one, whatever its Python is called there."""
    return Path(shutil.which(python) or python).absolute().parent


def _run_trial(environment: Mapping[str, str], master: str, text: str) -> subprocess.CompletedProcess[str]:
    """Run it, and leave nothing of it behind: pyspark's JVM ignores Ctrl-C, and outlives a Python that is killed alone."""
    command = [sys.executable, "-c", _TRIAL, master, text]
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
