"""Tests of the image's build: the commands and files of the Dockerfile make an environment that runs a gateway and the connectors,
without pip and Spark. The test downloads the image's packages.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.integration.deploy.sandbox import ROOT
from tests.support.ports import free_base

pytestmark = [pytest.mark.soak, pytest.mark.timeout(600)]
DOCKERFILE = ROOT / "docker/gateway/Dockerfile"
WAIT_S = 300.0


def build(place: Path) -> Path:
    """Carry out the first stage below `place`: its copies and its commands. Return the directory of its environment."""
    text = DOCKERFILE.read_text("utf-8").replace("\\\n", " ")
    stage = text[text.index("\nFROM ") : text.rindex("\nFROM ")]
    source, made = place / "src", place / "opt"
    source.mkdir()
    environment = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")}
    for line in stage.splitlines():
        instruction, _, rest = line.partition(" ")
        if instruction == "COPY":
            *files, target = rest.split()
            for name in files:
                to = source / target / name if target == "./" else source / target
                (shutil.copytree if (ROOT / name).is_dir() else shutil.copy)(ROOT / name, to)
        elif instruction == "RUN":
            command = rest.replace("/opt/tutti", str(made))
            done = subprocess.run(
                ["bash", "-ec", command], cwd=source, env=environment, capture_output=True, text=True, timeout=WAIT_S, check=False
            )
            assert done.returncode == 0, done.stderr[-3000:]
    return made


def test_the_built_image_runs_a_gateway_and_a_connector(tmp_path: Path) -> None:
    made = build(tmp_path)
    python = str(made / "bin/python")
    there = subprocess.run(
        [
            python,
            "-P",
            "-c",
            "import importlib.util as u; print([n for n in ('pip', 'setuptools', 'pyspark', 'tutti_gateway') if u.find_spec(n)])",
        ],
        capture_output=True,
        text=True,
        check=True,
        cwd=tmp_path,
    )
    assert there.stdout.strip() == "['tutti_gateway']"
    config = tmp_path / "gateway.toml"
    config.write_text((ROOT / "conf/minimal.toml").read_text("utf-8").replace("7400", str(free_base())))
    environment = {"PATH": f"{made / 'bin'}:/usr/bin:/bin"}
    command = [str(made / "bin/tutti"), "serve", "--config", str(config)]
    gateway = subprocess.Popen(command, cwd=tmp_path, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        assert gateway.stdout is not None
        ready = gateway.stdout.readline()
        gateway.terminate()
        _, said = gateway.communicate(timeout=WAIT_S)
        assert json.loads(ready or "{}").get("ready"), said
        assert gateway.returncode == 0, said
    finally:
        gateway.kill()
        gateway.wait()
    imported = [
        python,
        "-P",
        "-c",
        "import tutti_connect.kafka.source.connector, tutti_gateway.node.main, tutti_gateway.reads.main, tutti",
    ]
    done = subprocess.run(imported, capture_output=True, text=True, check=False, cwd="/")
    assert done.returncode == 0, done.stderr
