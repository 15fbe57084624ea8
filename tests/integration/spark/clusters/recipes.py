"""The commands of docs/how-to/clusters.md, with the names of this test in place of the reader's."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import subprocess
import sys
import sysconfig
from collections.abc import Mapping
from functools import cache
from pathlib import Path

from tests.support import spark_classes
from tutti.runtime.child_processes import end_with_this_process
from tutti_spark.launch import spark_home

ROOT = Path(__file__).resolve().parents[4]
JOB = Path(__file__).with_name("job.py")
QUIET = (
    "spark.ui.enabled=false",
    "spark.log.level=ERROR",
    "spark.sql.shuffle.partitions=2",
    "spark.python.unix.domain.socket.enabled=true",
)
WAIT_S = 250


@cache
def _sections() -> Mapping[str, str]:
    text = (ROOT / "docs/how-to/clusters.md").read_text()
    titles = [*re.finditer(r"^## (.*)$", text, re.M)]
    ends = [*(title.start() for title in titles[1:]), len(text)]
    return {title[1]: text[title.end() : end] for title, end in zip(titles, ends, strict=True)}


def commands(section: str, names: Mapping[str, str]) -> list[str]:
    """The commands of a section, one after the other, where each of `names` stands for what it is mapped to.

    Raises:
        AssertionError: a name is in none of them: the page changed, and the test would run something else.
    """
    lines = [line.removeprefix("    ") for line in _sections()[section].splitlines() if line.startswith("    ")]
    text = "\n".join(lines).replace("\\\n", " ")
    for name, here in names.items():
        assert name in text, f"{name!r} is in no command of the section {section!r}"
        text = text.replace(name, here)
    return text.splitlines()


def submitted(section: str, names: Mapping[str, str], *arguments: str) -> str:
    """The same as one script, quietly: with settings for a small machine, and more arguments of the job."""
    settings = " ".join(f"--conf {setting}" for setting in QUIET)
    script = "\n".join(commands(section, names))
    assert script.count("spark-submit ") == 1
    return f"{script.replace('spark-submit ', f'spark-submit {settings} ')} {' '.join(arguments)}"


def environment(**variables: str) -> dict[str, str]:
    """A user's shell where Spark's commands and this interpreter's are on PATH, and nothing is activated for Spark."""
    java = shutil.which("java")
    assert java is not None
    path = (spark_home() / "bin", Path(sys.executable).parent, Path(java).parent, "/usr/bin", "/bin")
    kept = {name: os.environ[name] for name in ("JAVA_HOME", "HOME", "LANG", "TMPDIR") if name in os.environ}
    shell = {
        "PATH": os.pathsep.join(map(str, path)),
        "SPARK_HOME": str(spark_home()),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "JAVA_TOOL_OPTIONS": spark_classes.options(),
    }
    return kept | shell | variables


def start(script: str, cwd: Path, **variables: str) -> subprocess.Popen[str]:
    """Run a script by the shell, in a group of its own."""
    return subprocess.Popen(
        ["bash", "-ec", script],
        cwd=cwd,
        env=environment(**variables),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        preexec_fn=end_with_this_process(signal.SIGKILL),  # noqa: PLW1509 - it calls prctl(2) alone
    )


def told(process: subprocess.Popen[str]) -> dict[str, str]:
    """Return the output of a successful job, one `NAME text` a line."""
    try:
        out, err = process.communicate(timeout=WAIT_S)
    finally:
        end(process)
    assert process.returncode == 0, (out + err)[-6000:]
    return dict(line.split(" ", 1) for line in out.splitlines() if re.match("[A-Z]+ ", line))


def end(process: subprocess.Popen[str]) -> None:
    """Kill its processes, and close its pipes."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait(WAIT_S)
    for pipe in (process.stdout, process.stderr):
        if pipe is not None:
            pipe.close()


def environment_without_package(directory: Path) -> Path:
    """An environment that has the libraries of this one, and not this package; its Python."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(directory)], check=True)
    packages = _packages(directory)
    # A directory that a .pth file names has no use for .pth files of its own: the checkout is not found through it.
    (packages / "libraries.pth").write_text(f"{sysconfig.get_path('purelib')}\n")
    return directory / "bin" / "python"


def fill(directory: Path, *names: str) -> None:
    """Put this package and these installed libraries into an environment, as pip would."""
    packages, installed = _packages(directory), Path(sysconfig.get_path("purelib"))
    for name in names:
        found = [
            *installed.glob(f"{name}-*.dist-info"),
            *(path for path in (installed / name, installed / f"{name}.libs") if path.exists()),
        ]
        assert len(found) > 1, name
        for path in found:
            shutil.copytree(path, packages / path.name, ignore=shutil.ignore_patterns("tests", "include", "__pycache__", "*.pdb"))
    for source in ("tutti", "streaming/tutti_spark", "streaming/pyspark_tutti"):
        shutil.copytree(ROOT / source, packages / Path(source).name, ignore=shutil.ignore_patterns("__pycache__"))


def _packages(directory: Path) -> Path:
    return directory / "lib" / f"python{sys.version_info[0]}.{sys.version_info[1]}" / "site-packages"
