"""Tests of the launch of Spark: it starts with this interpreter and this package, whatever `python3` is on PATH."""

import os
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

from tutti.errors import UsageError
from tutti_spark import launch
from tutti_spark.common import requirements

ROOT = Path(launch.__file__).parents[2]


def test_the_environment_names_this_interpreter_and_this_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", "elsewhere")
    environment = launch.spark_environment()
    assert environment["PYSPARK_PYTHON"] == environment["PYSPARK_DRIVER_PYTHON"] == sys.executable
    assert Path(environment["SPARK_HOME"], "bin", "spark-submit").is_file()
    assert environment["PYTHONPATH"].split(os.pathsep) == [str(ROOT / "streaming"), str(ROOT), "elsewhere"]


def test_a_job_becomes_a_command() -> None:
    command = launch.spark_submit(launch.job("flights"), "live", "--out", "o", conf={"spark.log.level": "WARN"})
    assert command[0].endswith("/bin/spark-submit")
    assert command[command.index("--master") + 1] == "local[2]"
    assert "spark.log.level=WARN" in command
    assert "spark.driver.host=127.0.0.1" in command
    assert command[-4:] == [str(ROOT / "streaming/tutti_spark/jobs/flights.py"), "live", "--out", "o"]
    assert "spark.driver.host=127.0.0.1" not in launch.spark_submit("job.py", master="spark://h:7077")


def test_no_job_hides_a_module_of_the_standard_library() -> None:
    """Spark puts a job's directory first on sys.path."""
    assert not {file.stem for file in (ROOT / "streaming/tutti_spark/jobs").glob("*.py")} & sys.stdlib_module_names


def test_a_job_that_is_not_there_names_those_that_are() -> None:
    with pytest.raises(UsageError, match="no job 'nothing': use one of alerts, "):
        launch.job("nothing")


def test_which_python_workers_will_be(tmp_path: Path) -> None:
    assert launch.worker_python({}) == "python3"
    assert launch.worker_python({"PYSPARK_PYTHON": "/p"}) == "/p"
    assert launch.probe_interpreter(sys.executable)["packages"] == requirements.describe_interpreter()["packages"]
    bare = tmp_path / "bare"
    bare.write_text(f'#!/bin/sh\nexec {sys.executable} -S -I "$@"\n')
    bare.chmod(0o755)
    assert launch.probe_interpreter(str(bare))["missing"] == list(requirements.MODULES)


@pytest.mark.parametrize(
    ("script", "words"),
    [
        (None, "does not start: "),
        ("echo not today >&2; exit 3", "exited with 3: not today"),
        ("exit 1", "exited with 1: it printed no error"),
        ("echo hello", "does not start: "),
    ],
)
def test_an_invalid_python_is_reported(tmp_path: Path, script: str | None, words: str) -> None:
    """Proves that a path that leads nowhere, or to another program, is named as what Spark would start."""
    python = tmp_path / "python3"
    if script is not None:
        python.write_text(f"#!/bin/sh\n{script}\n")
        python.chmod(0o755)
    with pytest.raises(UsageError, match=f"'{python}', which Spark would start for its Python workers, {words}"):
        launch.probe_interpreter(str(python))


def test_the_package_is_written_as_one_file(tmp_path: Path) -> None:
    """Proves that what is shipped can be imported from the zip file, and nothing of the checkout is needed."""
    run = subprocess.run([sys.executable, "-m", "tutti_spark.launch", "--zip", str(tmp_path / "tutti.zip")], check=False, cwd=ROOT)
    assert run.returncode == 0
    code = "import tutti, tutti_spark.source.data_source, pyspark_tutti, tutti.sources.flight as r\n"
    code += "print(r.__file__, pyspark_tutti.__file__)"
    environment = {"PYTHONPATH": os.pathsep.join([str(tmp_path / "tutti.zip"), sysconfig.get_path("purelib")])}
    command = [sys.executable, "-S", "-c", code]
    said = subprocess.run(command, env=environment, capture_output=True, text=True, check=True, cwd=tmp_path).stdout
    assert [Path(file).is_relative_to(tmp_path / "tutti.zip") for file in said.split()] == [True, True]


def test_a_spark_that_the_source_does_not_know_is_not_started(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Proves that the launcher tells which Spark is there, and which is needed, before it becomes one of its commands."""
    monkeypatch.setattr(launch, "version", lambda _: "4.1.1")
    assert launch.main(["spark-submit", "job.py"]) == 2
    said = capsys.readouterr().err
    assert said.startswith(f"error: pyspark in {launch.spark_home()} is 4.1.1 (4.2 or newer, below 4.4 is needed): ")


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
def test_without_java_the_error_names_the_package(tmp_path: Path, home: str | None, found: str) -> None:
    environment = {"PATH": str(tmp_path)} | ({"JAVA_HOME": home} if home else {})
    run = subprocess.run(
        [sys.executable, "-m", "tutti_spark.launch", "spark-submit", "job.py"],
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


def test_an_outdated_java_is_reported_before_spark_starts(tmp_path: Path) -> None:
    """Proves that a user reads which Java is needed, and not of class file versions."""
    java = tmp_path / "bin" / "java"
    java.parent.mkdir()
    java.write_text("#!/bin/sh\necho 'openjdk version \"11.0.2\" 2019-01-15' >&2\n")
    java.chmod(0o755)
    run = subprocess.run(
        [sys.executable, "-m", "tutti_spark.launch", "spark-submit", "job.py"],
        env={"JAVA_HOME": str(tmp_path), "PATH": os.defpath},
        capture_output=True,
        text=True,
        check=False,
        cwd=ROOT,
    )
    assert (run.returncode, run.stdout) == (3, "")
    assert run.stderr.startswith(f"error: Spark needs Java 17 or newer, and {java} is 11.0.2: install Java 17")


@pytest.mark.parametrize(
    ("arguments", "words"), [([], "spark-submit"), (["--what"], "spark-submit"), (["nothing"], "no command 'nothing'")]
)
def test_the_command_explains_itself(arguments: list[str], words: str) -> None:
    run = subprocess.run(
        [sys.executable, "-m", "tutti_spark.launch", *arguments], capture_output=True, text=True, check=False, cwd=ROOT
    )
    assert run.returncode == 2
    assert words in run.stderr
    assert "Traceback" not in run.stderr
