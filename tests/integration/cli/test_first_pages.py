"""Tests of the first pages of the documentation: the commands for new users do what the pages say."""

from __future__ import annotations

import shlex
import subprocess
import sys
from pathlib import Path

from tests.support.commands import WAIT_S, DevGroup, tutti

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


def test_the_readme_starts_a_gateway_and_its_examples_run_against_it(running: DevGroup) -> None:
    start, program, _, shell = blocks("README.md", "In a program")
    words = shlex.split(start)
    assert words == [".venv/bin/tutti", "dev", "--gateways", "3"]
    assert tutti("dev", "--help").out.count("[default: 7400") == 1  # where the examples look for it
    subprocess.run([sys.executable, "-c", program.replace(ADDRESS, running.url)], timeout=WAIT_S, check=True)
    assert tutti("tail", "--topic", "flights", "--format", "value", url=running.url).lines == ["..."]
    lines = shell.replace(ADDRESS, running.url).replace(".venv/bin/tutti", f"{sys.executable} -m tutti_gateway")
    done = subprocess.run(["bash", "-ec", lines], capture_output=True, text=True, timeout=WAIT_S, check=True, cwd=ROOT)
    assert '"topic":"greetings"' in done.stdout


def test_the_page_of_spark_names_the_weather_file() -> None:
    [command] = [block for block in blocks("docs/how-to/spark.md", "The job `flights`") if block.startswith("python -c")]
    _, *arguments = shlex.split(command)
    done = subprocess.run([sys.executable, *arguments], capture_output=True, text=True, timeout=WAIT_S, check=True, cwd=ROOT)
    assert Path(done.stdout.strip()).read_text().startswith("origin,year,")
