"""Starts Spark so that its Python processes use this interpreter and this package.

Spark starts its Python workers with `python3` from PATH unless PYSPARK_PYTHON names a different interpreter. Spark's commands find
the Spark installation by SPARK_HOME, or by the same `python3`. Outside of an activated environment, `python3` is the system's
Python, which has neither pyarrow nor this package. So code that starts Spark passes `spark_environment()`, and these commands do
the same:

    python -m tutti_spark.launch spark-submit [OPTIONS] JOB [ARGUMENTS]     starts a command of Spark's `bin`
    python -m tutti_spark.launch --install                                  makes this interpreter the environment's default
    python -m tutti_spark.launch --zip FILE                                 writes this package for spark-submit --py-files
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import sysconfig
import zipfile
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path

from tutti.errors import TuttiError, UsageError, install_remedy
from tutti_spark.common import java, requirements

#: Settings for Spark on one machine.
LOCAL_SETTINGS: dict[str, str] = {
    # With TCP, Nagle's algorithm and delayed acknowledgements delay each task by 40 ms; a Unix socket also copies faster.
    "spark.python.unix.domain.socket.enabled": "true",
    # On a local disk, this checkpoint manager takes 40 ms less per micro-batch than Spark's default.
    "spark.sql.streaming.checkpointFileManagerClass": (
        "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
    ),
    "spark.driver.host": "127.0.0.1",  # works without name resolution, and on a machine without a network
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.log.level": "ERROR",
}
_DEFAULT = "tutti-spark.pth"
_DEFAULT_TEXT = 'import os, sys; os.environ.setdefault("PYSPARK_PYTHON", sys.executable)\n'
_ANSWER_SECONDS = 30


def spark_environment() -> dict[str, str]:
    """Return the environment variables to set for a process that starts Spark.

    Raises:
        UsageError: pyspark is not installed next to this package.
    """
    variables = {"PYSPARK_PYTHON": sys.executable, "PYSPARK_DRIVER_PYTHON": sys.executable, "SPARK_HOME": str(spark_home())}
    checkout = [str(root) for root in _roots() if root.name not in ("site-packages", "dist-packages")]
    if checkout:  # make Spark run the code of the checkout, even if a release is also installed
        before = os.environ.get("PYTHONPATH")
        variables["PYTHONPATH"] = os.pathsep.join([*checkout, *([before] if before else [])])
    return variables


def _roots() -> list[Path]:
    """Return the directories that contain Tutti's packages: one if Tutti is installed, several in a checkout."""
    return list(dict.fromkeys(_package(name).parent for name in requirements.MODULES))


def _package(name: str) -> Path:
    found = find_spec(name)
    if found is None or found.origin is None:
        raise UsageError(f"the package {name} is not installed next to {Path(__file__).parent.name}: install all of Tutti")
    return Path(found.origin).resolve().parent


def spark_home() -> Path:
    """Return the directory of this interpreter's pyspark, which contains Spark's `bin` and `jars`."""
    found = find_spec("pyspark")
    if found is None or found.origin is None:
        raise UsageError(f"pyspark is not installed: {install_remedy('spark', sys.executable)}")
    return Path(found.origin).parent


def check_spark() -> None:
    """Check that the source supports the installed Spark version.

    Raises:
        UsageError: pyspark has an unsupported version, or is not installed next to this package.
    """
    home = spark_home()
    try:
        found = version("pyspark")
    except PackageNotFoundError:
        return  # pyspark has no pip metadata, so `requirements.check` checks the version when Spark runs
    if not requirements.SPARK.fits(found):
        remedy = install_remedy("spark", sys.executable)
        raise UsageError(f"pyspark in {home} is {found} ({requirements.SPARK} is needed): {remedy}")


def spark_submit(job: Path | str, *arguments: str, master: str = "local[2]", conf: Mapping[str, str] | None = None) -> list[str]:
    """Return the `spark-submit` command that runs a job; a local master uses `LOCAL_SETTINGS`. Needs `spark_environment()`."""
    settings = (LOCAL_SETTINGS if master.startswith("local") else {}) | dict(conf or {})
    command = [str(spark_home() / "bin" / "spark-submit"), "--master", master]
    for name, value in settings.items():
        command += ["--conf", f"{name}={value}"]
    return [*command, str(job), *arguments]


def job(name: str) -> Path:
    """Return the path of a job of this package, for `spark_submit`."""
    path = Path(__file__).resolve().parent / "jobs" / f"{name}.py"
    if not path.is_file():
        names = sorted(file.stem for file in path.parent.glob("*.py") if not file.stem.startswith("_"))
        raise UsageError(f"there is no job {name!r}: use one of {', '.join(names)}")
    return path


def worker_python(environment: Mapping[str, str] | None = None) -> str:
    """Return the Python interpreter that Spark starts for workers, given its environment (None: that of this process)."""
    variables = os.environ if environment is None else environment
    return variables.get("PYSPARK_PYTHON") or "python3"


def probe_interpreter(python: str) -> requirements.InterpreterReport:
    """Run the interpreter `python` and return its versions of Python and of the required packages.

    Raises:
        UsageError: the interpreter does not start, or does not print the versions.
    """
    code = Path(requirements.__file__).read_text()
    try:
        answer = subprocess.run([python, "-c", code], capture_output=True, text=True, timeout=_ANSWER_SECONDS, check=True, cwd="/")
        found: requirements.InterpreterReport = json.loads(answer.stdout)
    except subprocess.CalledProcessError as error:
        words = (error.stderr.strip() or "it printed no error").splitlines()[-1]
        raise UsageError(
            f"{python!r}, which Spark would start for its Python workers, exited with {error.returncode}: {words}"
        ) from error
    except (OSError, subprocess.SubprocessError, ValueError) as error:
        raise UsageError(f"{python!r}, which Spark would start for its Python workers, does not start: {error}") from error
    return found


def write_zip(file: Path) -> Path:
    """Write this package, without its dependencies, as a zip file for `spark-submit --py-files`."""
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        for package in map(_package, requirements.MODULES):
            for source in sorted(package.rglob("*.py")):
                archive.write(source, source.relative_to(package.parent))
    return file


def install() -> Path:
    """Make this interpreter Spark's default in its environment, with a .pth file that sets PYSPARK_PYTHON; return its path."""
    file = Path(sysconfig.get_path("purelib"), _DEFAULT)
    file.write_text(_DEFAULT_TEXT)
    return file


def main(arguments: list[str]) -> int:
    """Run `--install` or `--zip`, or replace this process with one of Spark's commands."""
    if arguments == ["--install"]:
        install()
        return 0
    if len(arguments) == 2 and arguments[0] == "--zip":
        write_zip(Path(arguments[1]))
        return 0
    if not arguments or arguments[0].startswith("-"):
        sys.stderr.write(f"{__doc__}\n")
        return 2
    try:
        command = spark_home() / "bin" / arguments[0]
        if not command.is_file():
            raise UsageError(f"Spark has no command {arguments[0]!r} in {command.parent}")
        check_spark()
        java.check(spark_home())
        os.execve(command, [str(command), *arguments[1:]], os.environ | spark_environment())
    except TuttiError as error:
        sys.stderr.write(f"error: {error}\n")
        return error.exit_code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
