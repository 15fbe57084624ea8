"""Starting Spark so that its Python processes are this interpreter, with this package.

Spark starts its Python workers with `python3` from PATH unless PYSPARK_PYTHON names another, and finds itself by SPARK_HOME or
again by that `python3`. Outside of an activated environment that is the system's, which has neither pyarrow nor this package. So
whoever starts Spark from here passes `spark_environment()`, and

    python -m tutti_spark.launch spark-submit [OPTIONS] JOB [ARGUMENTS]     starts anything of Spark's `bin` that way
    python -m tutti_spark.launch --install                                  makes it the default of this environment
    python -m tutti_spark.launch --zip FILE                                 writes this package, for spark-submit --py-files
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

from tutti.errors import TuttiError, UsageError
from tutti_spark.common import java, requirements

#: Settings for Spark on one machine.
LOCAL_SETTINGS: dict[str, str] = {
    # Over loopback TCP each task waits 40 ms, as Nagle's algorithm meets delayed acknowledgements; this also copies faster.
    "spark.python.unix.domain.socket.enabled": "true",
    # The default manager takes 40 ms longer for each micro-batch, on a local disk.
    "spark.sql.streaming.checkpointFileManagerClass": (
        "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
    ),
    "spark.driver.host": "127.0.0.1",  # a host name that does not resolve, or to a network that is down, does not matter
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.log.level": "ERROR",
}
_DEFAULT = "tutti-spark.pth"
_DEFAULT_TEXT = 'import os, sys; os.environ.setdefault("PYSPARK_PYTHON", sys.executable)\n'
_ANSWER_SECONDS = 30


def spark_environment() -> dict[str, str]:
    """The variables to set for a process that starts Spark; everything else stays as it is.

    Raises:
        UsageError: pyspark is not installed beside this package.
    """
    variables = {"PYSPARK_PYTHON": sys.executable, "PYSPARK_DRIVER_PYTHON": sys.executable, "SPARK_HOME": str(spark_home())}
    checkout = [str(root) for root in _roots() if root.name not in ("site-packages", "dist-packages")]
    if checkout:  # Spark runs the checkout's code, whether it is installed or not
        before = os.environ.get("PYTHONPATH")
        variables["PYTHONPATH"] = os.pathsep.join([*checkout, *([before] if before else [])])
    return variables


def _roots() -> list[Path]:
    """Return the directories that hold this project's packages: one where it is installed, several in a checkout."""
    return list(dict.fromkeys(_package(name).parent for name in requirements.MODULES))


def _package(name: str) -> Path:
    found = find_spec(name)
    if found is None or found.origin is None:
        raise UsageError(f"the package {name} is not beside {Path(__file__).parent.name}: install Tutti as a whole")
    return Path(found.origin).resolve().parent


def spark_home() -> Path:
    """The directory of the pyspark that this interpreter imports; Spark's `bin` and `jars` are in it."""
    found = find_spec("pyspark")
    if found is None or found.origin is None:
        raise UsageError(f"pyspark is not installed in the environment of {sys.executable}: pip install 'tutti-ingest[spark]'")
    return Path(found.origin).parent


def check_spark() -> None:
    """Refuse to start a Spark that the source does not know.

    Raises:
        UsageError: pyspark is of another version, or not installed beside this package.
    """
    home = spark_home()
    try:
        found = version("pyspark")
    except PackageNotFoundError:
        return  # it came by other ways than pip, and tells its version when it runs
    if not requirements.SPARK.fits(found):
        raise UsageError(f"pyspark in {home} is {found} ({requirements.SPARK} is needed): {sys.executable} {requirements.INSTALL}")


def spark_submit(job: Path | str, *arguments: str, master: str = "local[2]", conf: Mapping[str, str] | None = None) -> list[str]:
    """The command that runs a job, quietly on a local master; run it with `spark_environment()`."""
    settings = (LOCAL_SETTINGS if master.startswith("local") else {}) | dict(conf or {})
    command = [str(spark_home() / "bin" / "spark-submit"), "--master", master]
    for name, value in settings.items():
        command += ["--conf", f"{name}={value}"]
    return [*command, str(job), *arguments]


def job(name: str) -> Path:
    """The file of one of our jobs, for `spark_submit`."""
    path = Path(__file__).resolve().parent / "jobs" / f"{name}.py"
    if not path.is_file():
        names = sorted(file.stem for file in path.parent.glob("*.py") if not file.stem.startswith("_"))
        raise UsageError(f"there is no job {name!r}; there are {', '.join(names)}")
    return path


def worker_python(environment: Mapping[str, str] | None = None) -> str:
    """The interpreter that Spark starts for its workers when it is started with `environment` (None: this process's)."""
    variables = os.environ if environment is None else environment
    return variables.get("PYSPARK_PYTHON") or "python3"


def ask(python: str) -> requirements.Told:
    """What the interpreter `python` is and has, of what reading from Tutti needs.

    Raises:
        UsageError: it cannot be started, or does not answer as a Python does.
    """
    code = Path(requirements.__file__).read_text()
    try:
        answer = subprocess.run([python, "-c", code], capture_output=True, text=True, timeout=_ANSWER_SECONDS, check=True, cwd="/")
        found: requirements.Told = json.loads(answer.stdout)
    except subprocess.CalledProcessError as error:
        words = (error.stderr.strip() or "it said nothing").splitlines()[-1]
        raise UsageError(
            f"{python!r}, which Spark would start for its Python workers, ended with {error.returncode}: {words}"
        ) from error
    except (OSError, subprocess.SubprocessError, ValueError) as error:
        raise UsageError(f"{python!r}, which Spark would start for its Python workers, does not start: {error}") from error
    return found


def ship(file: Path) -> Path:
    """Write this package as the zip file that `spark-submit --py-files` takes; its libraries are not in it."""
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        for package in map(_package, requirements.MODULES):
            for source in sorted(package.rglob("*.py")):
                archive.write(source, source.relative_to(package.parent))
    return file


def install() -> Path:
    """Make this interpreter the default of every Spark that is started from its environment; returns the file that does it."""
    file = Path(sysconfig.get_path("purelib"), _DEFAULT)
    file.write_text(_DEFAULT_TEXT)
    return file


def main(arguments: list[str]) -> int:
    """Install the default, write the package, or become one of Spark's commands."""
    if arguments == ["--install"]:
        install()
        return 0
    if len(arguments) == 2 and arguments[0] == "--zip":
        ship(Path(arguments[1]))
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
