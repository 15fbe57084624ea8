"""Spark is started with this interpreter and this package, wherever `python3` on PATH leads."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from gateway.errors import UsageError
from streaming import launch

ROOT = Path(launch.__file__).parents[1]


def test_the_environment_names_this_interpreter_and_this_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", "elsewhere")
    environment = launch.spark_environment()
    assert environment["PYSPARK_PYTHON"] == environment["PYSPARK_DRIVER_PYTHON"] == sys.executable
    assert Path(environment["SPARK_HOME"], "bin", "spark-submit").is_file()
    assert environment["PYTHONPATH"].split(os.pathsep) == [str(ROOT), "elsewhere"]


def test_a_job_becomes_a_command() -> None:
    command = launch.spark_submit(launch.job("flights"), "live", "--out", "o", conf={"spark.log.level": "WARN"})
    assert command[0].endswith("/bin/spark-submit")
    assert command[command.index("--master") + 1] == "local[2]"
    assert "spark.log.level=WARN" in command
    assert "spark.driver.host=127.0.0.1" in command
    assert command[-4:] == [str(ROOT / "streaming/jobs/flights.py"), "live", "--out", "o"]
    assert "spark.driver.host=127.0.0.1" not in launch.spark_submit("job.py", master="spark://h:7077")


def test_no_job_hides_a_module_of_the_standard_library() -> None:
    """Spark puts a job's directory first on sys.path."""
    assert not {file.stem for file in (ROOT / "streaming/jobs").glob("*.py")} & sys.stdlib_module_names


def test_a_job_that_is_not_there_names_those_that_are() -> None:
    with pytest.raises(UsageError, match="no job 'nothing'; there are departures, flights"):
        launch.job("nothing")


def test_which_python_workers_will_be(tmp_path: Path) -> None:
    assert launch.worker_python({}) == "python3"
    assert launch.worker_python({"PYSPARK_PYTHON": "/p"}) == "/p"
    assert launch.missing_modules(sys.executable) == []
    bare = tmp_path / "bare"
    bare.write_text(f'#!/bin/sh\nexec {sys.executable} -S -I "$@"\n')
    bare.chmod(0o755)
    assert launch.missing_modules(str(bare)) == list(launch.MODULES)
    with pytest.raises(UsageError, match="does not start"):
        launch.missing_modules(str(tmp_path / "none"))


def test_the_installed_default_is_this_interpreter_and_leaves_a_choice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sysconfig.get_path", lambda name: str(tmp_path))
    file = launch.install()
    code = "import os, site; site.addsitedir(os.environ['DIRECTORY']); print(os.environ['PYSPARK_PYTHON'])"

    def said(**variables: str) -> str:
        environment = {"DIRECTORY": str(file.parent), **variables}
        run = subprocess.run([sys.executable, "-S", "-c", code], env=environment, capture_output=True, text=True, check=True)
        return run.stdout.strip()

    assert said() == sys.executable
    assert said(PYSPARK_PYTHON="/other") == "/other"


@pytest.mark.parametrize(
    ("home", "found"),
    [(None, "there is no java on PATH, and JAVA_HOME is not set"), ("/nowhere", "JAVA_HOME=/nowhere has no bin/java")],
)
def test_without_java_it_says_what_to_install(tmp_path: Path, home: str | None, found: str) -> None:
    environment = {"PATH": str(tmp_path)} | ({"JAVA_HOME": home} if home else {})
    run = subprocess.run(
        [sys.executable, "-m", "streaming.launch", "spark-submit", "job.py"],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        cwd=ROOT,
    )
    assert (run.returncode, run.stdout) == (3, "")
    assert run.stderr.startswith(f"error: Spark needs Java, and {found}: install Java 17")
    assert "openjdk-17-jre-headless" in run.stderr
    assert run.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("arguments", "words"), [([], "spark-submit"), (["--what"], "spark-submit"), (["nothing"], "no command 'nothing'")]
)
def test_the_command_explains_itself(arguments: list[str], words: str) -> None:
    run = subprocess.run(
        [sys.executable, "-m", "streaming.launch", *arguments], capture_output=True, text=True, check=False, cwd=ROOT
    )
    assert run.returncode == 2
    assert words in run.stderr
    assert "Traceback" not in run.stderr
