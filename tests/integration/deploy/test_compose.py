"""Tests of the image with the compose file: the image's own commands found a group from the compose files, and stop in order."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import yaml
from compose_spec import PyOptions
from compose_spec.models import ComposeSpecification

from tests.faults.lab.network import Network
from tests.integration.deploy.sandbox import ROOT, Box, Mount, ready, stopping
from tutti_connect.kafka.config import load_source_config

pytestmark = [pytest.mark.lab, pytest.mark.slow, pytest.mark.timeout(600)]
FOLDER = ROOT / "docker/compose"
GATEWAYS = ("jfk", "lga", "ewr")


def compose() -> dict[str, Any]:
    """The file, as it is read."""
    return dict(yaml.safe_load((FOLDER / "compose.yaml").read_text("utf-8")))


def instructions(dockerfile: Path) -> dict[str, list[str]]:
    """Map each instruction of the last stage to its arguments, one entry for each use."""
    text = dockerfile.read_text("utf-8").replace("\\\n", " ")
    lines = [line for line in text[text.rindex("\nFROM ") :].splitlines() if line and not line.startswith("#")]
    found: dict[str, list[str]] = {}
    for line in lines:
        name, _, rest = line.partition(" ")
        found.setdefault(name, []).append(rest.strip())
    return found


IMAGE = instructions(ROOT / "docker/gateway/Dockerfile")
ENTRYPOINT: list[str] = json.loads(IMAGE["ENTRYPOINT"][0])


def merged() -> PyOptions:
    """Reads with the merges that the file has (`<<`)."""
    options = PyOptions()
    options.apply_merge = True
    return options


def words(command: str | list[str]) -> list[str]:
    """Split a command as compose does."""
    return shlex.split(command) if isinstance(command, str) else command


def test_dockerfiles_have_nothing_to_be_warned_of() -> None:
    done = subprocess.run(
        [
            Path(sys.executable).with_name("hadolint"),
            "--no-color",
            "--failure-threshold",
            "warning",
            "docker/gateway/Dockerfile",
            "docker/spark/Dockerfile",
        ],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout


def test_the_compose_file_has_the_form_of_one_and_its_files_are_there() -> None:
    text = (FOLDER / "compose.yaml").read_text("utf-8")
    read = merged().from_yaml(text)
    read.validate()
    spec = ComposeSpecification.model_validate(json.loads(read.to_json()))
    assert set(GATEWAYS) < set(spec.services or {})
    with pytest.raises(ValueError, match="comand"):
        merged().from_yaml(text.replace("    command:", "    comand:", 1)).validate()
    for name, service in compose()["services"].items():
        for volume in service.get("volumes", []):
            source = volume.split(":")[0]
            place = FOLDER / source
            assert place.exists() if source.startswith(".") else source in compose()["volumes"], f"{name}: {volume}"
        if "build" in service:
            build = service["build"]
            assert (FOLDER / build["context"] / build["dockerfile"]).resolve().is_file()


def test_configurations_of_the_gateways_differ_in_names_alone() -> None:
    texts = {(FOLDER / f"conf/{name}.toml").read_text("utf-8").replace(name, "NAME", 1).replace(f'"{name}:7400"', '"NAME:7400"', 1)
             for name in GATEWAYS}  # fmt: skip
    shared = {"\n".join(line for line in text.splitlines() if "NAME" not in line and "secret_key" not in line) for text in texts}
    assert len(shared) == 1
    assert load_source_config(str(FOLDER / "conf/kafka-in.toml")).gateways == compose()["x-client"]["environment"]["TUTTI_URL"]


@pytest.mark.soak
def test_its_commands_found_a_group_that_accepts_records_and_stops_in_order(tmp_path: Path) -> None:
    services = compose()["services"]
    assert ENTRYPOINT == ["tini", "--", "tutti"]
    with Network(list(GATEWAYS)) as network, ExitStack() as opened:
        names = {name: network.addresses[name] for name in GATEWAYS}

        def box(name: str, host: str, environment: dict[str, str] | None = None) -> Box:
            service = services[name]
            mounts = [Mount(None, place) for place in service.get("tmpfs", ["/tmp"])]
            for volume in service.get("volumes", []):
                source, target, *mode = volume.split(":")
                place = FOLDER / source if source.startswith(".") else tmp_path / "volumes" / source
                place.mkdir(parents=True, exist_ok=True)
                mounts.append(Mount(place.resolve(), target, "ro" not in mode))
            scratch = tmp_path / "boxes" / name
            return opened.enter_context(Box(network, host, scratch, mounts, names=names, environment=environment))

        keys = services["keys"]
        maker = box("keys", "jfk")
        for _ in range(2):  # what is started again leaves the keys as they are
            maker.run(*keys["entrypoint"], *keys["command"])
        boxes = {name: box(name, name) for name in GATEWAYS}
        running = {name: boxes[name].start(*ENTRYPOINT[2:], *words(services[name]["command"])) for name in GATEWAYS}
        client = box("client", "lga", compose()["x-client"]["environment"])
        with stopping(list(running.values())):
            for name, process in running.items():
                assert ready(process, boxes[name])["url"] == f"tutti://{name}:7400"
                check = json.loads(IMAGE["HEALTHCHECK"][0].split("CMD", 1)[1])
                boxes[name].run(*check)
            client.run("tutti", "produce", "--topic", "orders", text="one\ntwo\n")
            assert client.run("tutti", "tail", "--topic", "orders", "--format", "value") == "one\ntwo\n"
            assert json.loads(client.run("tutti", *words(services["client"]["command"]), "--json"))["state"] == "primary"


def test_prometheus_asks_every_gateway_and_the_connector() -> None:
    folder = ROOT / "docker/prometheus"
    asked = yaml.safe_load((folder / "prometheus.yml").read_text("utf-8"))
    targets = [target for job in asked["scrape_configs"] for static in job["static_configs"] for target in static["targets"]]
    assert targets == [*(f"{name}:7403" for name in GATEWAYS), "kafka-in:9464"]
    assert "../prometheus:/etc/prometheus:ro" in compose()["services"]["prometheus"]["volumes"]
    [source] = yaml.safe_load((ROOT / "docker/grafana/datasource.yml").read_text("utf-8"))["datasources"]
    assert source["url"] == "http://prometheus:9090"
