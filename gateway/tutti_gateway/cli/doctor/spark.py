"""Checks of the Spark installation: pyspark, the Python of Spark's workers, Spark's settings, and a small Spark job."""

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

from tutti.errors import UsageError, install_remedy
from tutti_gateway.cli.doctor.machine import Finding

if TYPE_CHECKING:
    from tutti_spark.common.requirements import InterpreterReport

LOCAL = "local[1]"
_INSTALL = install_remedy("spark", sys.executable)
_SOCKET = "spark.python.unix.domain.socket.enabled"
_TRIAL_WAIT_S = 180.0

#: Spark job that `trial` runs. The job prints the packages of the workers, and whether Spark finds the data source.
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
    return [scope["describe_interpreter"]()]
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
    """Check that a supported version of pyspark is installed, and that SPARK_HOME, if set, has the same version."""
    from tutti_spark.common.requirements import SPARK
    from tutti_spark.launch import spark_home

    try:
        found = version("pyspark")
    except PackageNotFoundError:
        return Finding("pyspark", False, "not installed (gateways and clients do not need it)", _INSTALL)
    if not SPARK.fits(found):
        return Finding("pyspark", False, f"{found} ({SPARK} is needed)", _INSTALL)
    home = os.environ.get("SPARK_HOME")
    if home is None or Path(home).resolve() == spark_home().resolve():
        return Finding("pyspark", True, found)
    home_version = next((file.stem.rpartition("-")[2] for file in Path(home, "jars").glob("spark-core_*.jar")), "none")
    do = f"set SPARK_HOME to Spark {found}, or unset it: pyspark needs a Spark of its own version"
    return Finding("pyspark", home_version == found, f"{found}, and SPARK_HOME={home} has Spark {home_version}", do)


def python_of_workers() -> Finding:
    """Check the version and the packages of the Python that Spark runs in its workers if it is started from this shell."""
    from tutti_spark.launch import probe_interpreter, worker_python

    subject = "python of Spark's workers"
    python = worker_python()
    python_source = "PYSPARK_PYTHON" if os.environ.get("PYSPARK_PYTHON") else "python3 on PATH, as PYSPARK_PYTHON is not set"
    do = (
        f"export PYSPARK_PYTHON={sys.executable}   (or once for this environment: {sys.executable} -m tutti_spark.launch --install)"
    )
    try:
        found = probe_interpreter(python)
    except UsageError as error:
        return Finding(subject, False, f"{python_source}: {error}", do)
    driver_version = ".".join(map(str, sys.version_info[:2]))
    text = f"{python} {found['python']} ({python_source})"
    problems = _problems(found)
    if problems:
        return Finding(subject, False, f"{text}: {problems}", do)
    text += " with " + ", ".join(f"{name} {found['packages'].get(name) or 'none'}" for name in ("pyarrow", "pandas"))
    same = found["python"].startswith(driver_version + ".")
    return Finding(
        subject, same, text, f"{do}: the driver and the workers need the same version, and the driver has {driver_version}"
    )


def settings() -> Finding:
    """Check the Spark settings that affect the Tutti data source, in the environment and in spark-defaults.conf."""
    from tutti_spark.launch import spark_home, worker_python

    subject = "settings of Spark"
    register = "call pyspark_tutti.register(spark) in the job: a registered format runs with PYSPARK_PYTHON"
    discovered = "a format that Spark finds by itself"
    driver, worker = os.environ.get("PYSPARK_DRIVER_PYTHON"), worker_python()
    if driver and _home(driver) != _home(worker):
        found = f"PYSPARK_DRIVER_PYTHON={driver}: {discovered} runs with that Python, on executors too, instead of {worker}"
        return Finding(subject, False, found, f"unset it, or {register}")
    try:
        home = Path(os.environ.get("SPARK_HOME") or spark_home())
    except UsageError:
        return Finding(subject, True, "none, because Spark is not installed")
    file = Path(os.environ.get("SPARK_CONF_DIR") or home / "conf", "spark-defaults.conf")
    lines = file.read_text("utf-8", "replace").splitlines() if file.is_file() else []
    given = dict(line.strip().replace("=", " ", 1).split(None, 1) for line in lines if len(line.replace("=", " ", 1).split()) > 1)
    python = given.get("spark.pyspark.python", worker).strip()
    if _home(python) != _home(worker):
        found = f"spark.pyspark.python is {python} in {file}: {discovered} ignores it, and runs with {worker}"
        return Finding(subject, False, found, f"export PYSPARK_PYTHON={python}, or {register}")
    fast = given.get(_SOCKET, "false").strip() == "true"
    slow = "" if fast else f"; {_SOCKET} is not true in {file}: each task takes 40 ms longer unless the job sets it"
    return Finding(subject, True, f"no conflict{slow}")


def trial(master: str = LOCAL) -> Finding:
    """Run a small Spark job, and check the workers that it reaches. A local job uses the environment that `tutti demo` uses."""
    from tutti_spark.common import requirements
    from tutti_spark.launch import spark_environment

    subject = "a trial of Spark"
    try:
        run = _run_trial(os.environ | (spark_environment() if master == LOCAL else {}), master, inspect.getsource(requirements))
    except UsageError as error:
        return Finding(subject, False, str(error), "fix the problems above first")
    except subprocess.TimeoutExpired:
        do = (
            "fix the problems above first"
            if master == LOCAL
            else f"check that {master} has workers with a free core and 1 GiB of memory"
        )
        return Finding(subject, False, f"did not end within {_TRIAL_WAIT_S:.0f} s", do)
    lines = [line for line in run.stdout.splitlines() if line.startswith("TRIAL ")]
    if not lines:
        lines = [line for line in run.stderr.strip().splitlines() if line.strip()]
        return Finding(
            subject, False, f"ended with {run.returncode}: {lines[-1] if lines else 'no output'}", "see the findings above"
        )
    result = orjson.loads(lines[0].removeprefix("TRIAL "))
    if result["failed"]:
        return Finding(subject, False, f"on {master}: {result['failed'][:300]}", "fix the problems above first")
    workers: dict[str, InterpreterReport] = {
        f"{worker['executable']} {worker['python']} on {worker['host']}": worker for worker in result["workers"]
    }
    for text, worker in workers.items():
        if problems := _problems(worker):
            do = f"on that host, {install_remedy('spark', worker['executable'])}; "
            do += "or set PYSPARK_PYTHON to a suitable Python on every host"
            return Finding(subject, False, f"workers run {text}: {problems}", do)
    text = "workers run " + " and ".join(workers)
    if "gateways" not in result["source"]:
        return Finding(subject, False, f"{text}, but Spark does not find the format tutti: {result['source'][:200]}", _INSTALL)
    return Finding(subject, True, f"{text}, and Spark finds the format tutti")


def _problems(found: InterpreterReport) -> str:
    """Return text that lists the missing and unsupported packages of a Python interpreter, or "" if there are none."""
    from tutti_spark.common.requirements import version_errors

    missing = [f"it lacks {', '.join(found['missing'])}"] if found["missing"] else []
    return "; ".join(missing + version_errors(found))


def _home(python: str) -> Path:
    """Return the directory of a Python command. Two commands in one directory belong to the same environment."""
    return Path(shutil.which(python) or python).absolute().parent


def _run_trial(environment: Mapping[str, str], master: str, text: str) -> subprocess.CompletedProcess[str]:
    """Run the trial job in a process group of its own, and kill the whole group at the end.

    Killing only the Python process is not enough: pyspark's JVM ignores Ctrl-C, and continues after its Python has ended.
    """
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
