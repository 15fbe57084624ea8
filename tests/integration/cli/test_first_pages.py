"""Tests of the first pages of the documentation: the commands for new users do what the pages say."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

from tests.support.commands import WAIT_S
from tests.support.ports import free_base
from tutti.common.gateway_url import DEFAULT_URL

ROOT = Path(__file__).parents[3]
ADDRESS = "tutti://127.0.0.1:7400"


def blocks(page: str, heading: str) -> list[str]:
    """The indented examples below a heading, in order."""
    part = (ROOT / page).read_text().split(f"\n## {heading}\n", 1)[1].split("\n## ", 1)[0]
    found: list[list[str]] = [[]]
    for line in part.splitlines():
        if line.startswith("    "):
            found[-1].append(line[4:])
        elif line:
            found.append([])
        elif found[-1]:
            found[-1].append("")
    return ["\n".join(lines).strip() for lines in found if lines]


@pytest.mark.timeout(300)
def test_the_first_commands_of_the_readme_work_in_a_fresh_clone(tmp_path: Path) -> None:
    """Proves that they need Python alone. Only the ports differ, and the libraries of the extra come from this environment."""
    clone, port = tmp_path / "clone", free_base(3)
    clone.mkdir()
    copy = f"git ls-files -z | xargs -0 cp --no-dereference --parents -t '{clone}'"
    subprocess.run(["bash", "-ec", copy], cwd=ROOT, timeout=WAIT_S, check=True)
    install, shell, program, _ = blocks("README.md", "First steps")
    make, pip, start = install.splitlines()
    assert make == "python3 -m venv .venv"
    subprocess.run([sys.executable, *make.split()[1:]], cwd=clone, timeout=WAIT_S, check=True)
    assert pip == ".venv/bin/pip install '.[gateway]'"
    offline = [*shlex.split(pip), "--quiet", "--no-deps", "--no-build-isolation"]
    libraries = {**os.environ, "PYTHONPATH": sysconfig.get_path("purelib"), "PIP_DISABLE_PIP_VERSION_CHECK": "1"}
    subprocess.run(offline, cwd=clone, env=libraries, timeout=120, check=True)
    ports = {"7400": str(port), "7410": str(port + 10)}
    with subprocess.Popen([*shlex.split(start), "--port", str(port)], cwd=clone, env=libraries, stdout=subprocess.PIPE) as dev:
        try:
            assert dev.stdout is not None
            assert b'"ready":true' in dev.stdout.readline().replace(b" ", b"")
            assert DEFAULT_URL == ADDRESS  # which the first command uses
            shell, program = (re.sub("74[01]0", lambda found: ports[found[0]], text) for text in (shell, program))
            environment = libraries | {"TUTTI_URL": f"tutti://127.0.0.1:{port}"}
            done = subprocess.run(
                ["bash", "-ec", shell], capture_output=True, text=True, timeout=WAIT_S, check=True, cwd=clone, env=environment
            )
            assert '"topic":"greetings"' in done.stdout
            python = [str(clone / ".venv/bin/python"), "-c", program + "\nprint(offset, batch.num_rows)"]
            done = subprocess.run(python, capture_output=True, text=True, timeout=WAIT_S, check=True, cwd=clone, env=libraries)
            assert done.stdout == "1 1\n"
        finally:
            dev.terminate()


def test_the_page_of_spark_names_the_weather_file() -> None:
    [command] = [block for block in blocks("docs/how-to/spark.md", "The job `flights`") if block.startswith("python -c")]
    _, *arguments = shlex.split(command)
    done = subprocess.run([sys.executable, *arguments], capture_output=True, text=True, timeout=WAIT_S, check=True, cwd=ROOT)
    assert Path(done.stdout.strip()).read_text().startswith("origin,year,")
