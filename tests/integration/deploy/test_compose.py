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
from tests.support.waiting import wait_until
from tutti.data.member_address import is_loopback
from tutti_connect.kafka.config import load_source_config
from tutti_gateway.config.loader import parse_config
from tutti_gateway.config.model import Config

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


def published() -> dict[int, int]:
    """Map the ports of 127.0.0.1 that the compose file publishes to the ports of the shared network interface."""
    ports: dict[int, int] = {}
    for text in compose()["services"]["network"]["ports"]:
        address, outside, inside = text.split(":")
        assert address == "127.0.0.1", "only this machine may reach gateways that need no token"
        first, last = ([int(port) for port in (side.split("-") * 2)[:2]] for side in (outside, inside))
        ports.update(zip(range(first[0], first[1] + 1), range(last[0], last[1] + 1), strict=True))
    return ports


def own_config(name: str) -> Config:
    """The configuration of a gateway."""
    config, mistakes = parse_config((FOLDER / f"conf/{name}.toml").read_text("utf-8"))
    assert config is not None, mistakes
    return config


def test_a_gateway_has_the_same_addresses_on_the_host_and_in_every_container() -> None:
    services = compose()["services"]
    ports = published()
    assert all(outside == inside for outside, inside in ports.items())
    for name in GATEWAYS:
        config = own_config(name)
        assert config.advertised_address == ("127.0.0.1", config.client_address.port)
        assert not is_loopback(config.client_address.host), "connections to published ports arrive at another interface"
        assert {config.client_address.port, config.reads_address.port, config.admin_address.port} <= ports.keys()
        assert config.group_address.port not in ports
        assert config.group.members[name] == config.advertise
        assert f":{config.admin_address.port}/" in services[name]["healthcheck"]["test"][-1]
    assert all(services[name]["network_mode"] == "service:network" for name in (*GATEWAYS, "client", "kafka-in", "spark"))
    url = compose()["x-client"]["environment"]["TUTTI_URL"]
    assert url == f"tutti://{','.join(own_config('jfk').group.members.values())}"
    assert services["spark"]["environment"]["TUTTI_URL"] == url


def test_configurations_of_the_gateways_differ_in_names_and_ports_alone() -> None:
    def own(line: str) -> bool:
        return line.startswith(("name = ", "listen = ", "advertise = ", "secret_key = ")) and "ingest" not in line

    texts = [(FOLDER / f"conf/{name}.toml").read_text("utf-8").splitlines() for name in GATEWAYS]
    assert len({"\n".join(line for line in text if not own(line)) for text in texts}) == 1
    assert [sum(own(line) for line in text) for text in texts] == [4, 4, 4]
    assert load_source_config(str(FOLDER / "conf/kafka-in.toml")).gateways == compose()["x-client"]["environment"]["TUTTI_URL"]


@pytest.mark.soak
def test_its_commands_found_a_group_that_accepts_records_and_stops_in_order(tmp_path: Path) -> None:
    """All containers share one network interface. A client on the host reaches each gateway by the advertised address."""
    services = compose()["services"]
    assert ENTRYPOINT == ["tini", "--", "tutti"]
    with Network(["containers", "machine"]) as network, ExitStack() as opened:

        def box(name: str, host: str, environment: dict[str, str] | None = None) -> Box:
            service = services[name]
            mounts = [Mount(None, place) for place in service.get("tmpfs", ["/tmp"])]
            for volume in service.get("volumes", []):
                source, target, *mode = volume.split(":")
                place = FOLDER / source if source.startswith(".") else tmp_path / "volumes" / source
                place.mkdir(parents=True, exist_ok=True)
                mounts.append(Mount(place.resolve(), target, "ro" not in mode))
            scratch = tmp_path / "boxes" / name
            return opened.enter_context(Box(network, host, scratch, mounts, environment=environment))

        keys = services["keys"]
        maker = box("keys", "containers")
        for _ in range(2):  # what is started again leaves the keys as they are
            maker.run(*keys["entrypoint"], *keys["command"])
        boxes = {name: box(name, "containers") for name in GATEWAYS}
        running = {name: boxes[name].start(*ENTRYPOINT[2:], *words(services[name]["command"])) for name in GATEWAYS}
        client = box("client", "containers", compose()["x-client"]["environment"])
        host = opened.enter_context(Box(network, "machine", tmp_path / "boxes/host", [Mount(None, "/tmp")]))
        publisher = [sys.executable, "-m", "tests.integration.deploy.published_ports", network.addresses["containers"]]
        command = [*network.inside("machine"), *publisher, *map(str, published())]
        forwarder = opened.enter_context(subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True))
        opened.callback(forwarder.kill)
        assert forwarder.stdout is not None
        assert forwarder.stdout.readline() == "published\n"
        with stopping(list(running.values())):
            for name, process in running.items():
                assert ready(process, boxes[name])["url"] == f"tutti://{own_config(name).advertise}"
                boxes[name].run(*services[name]["healthcheck"]["test"][1:])
            boxes["jfk"].run(*json.loads(IMAGE["HEALTHCHECK"][0].split("CMD", 1)[1]))
            client.run("tutti", "produce", "--topic", "orders", text="one\ntwo\n")
            assert client.run("tutti", "tail", "--topic", "orders", "--format", "value") == "one\ntwo\n"
            assert json.loads(client.run("tutti", *words(services["client"]["command"]), "--json"))["state"] == "primary"
            for name in GATEWAYS:
                url = f"tutti://{own_config(name).advertise}"
                assert json.loads(host.run("tutti", "status", "--json", "--url", url))["gateway"] == name
                host.run("tutti", "produce", "--topic", name, "--url", url, text="three\n")
                assert host.run("tutti", "tail", "--topic", name, "--format", "value", "--url", url) == "three\n"
            # A client that knows one gateway continues at the others, by the addresses that this gateway advertised.
            sent = host.start("sh", "-c", "seq 20 | tutti produce --topic on --rate 5 --url tutti://127.0.0.1:7400")
            wait_until(lambda: client.run("tutti", "tail", "--topic", "on", "--format", "value") != "")
            running["jfk"].terminate()
            assert sent.wait(60) == 0
            url, expected = "tutti://127.0.0.1:7420", [str(number) for number in range(1, 21)]
            assert host.run("tutti", "tail", "--topic", "on", "--format", "value", "--url", url).split() == expected


def test_prometheus_asks_every_gateway_and_the_connector() -> None:
    folder = ROOT / "docker/prometheus"
    asked = yaml.safe_load((folder / "prometheus.yml").read_text("utf-8"))
    targets = [target for job in asked["scrape_configs"] for static in job["static_configs"] for target in static["targets"]]
    assert targets == [*(f"{name}:{own_config(name).admin_address.port}" for name in GATEWAYS), "kafka-in:9464"]
    hosts = {target.partition(":")[0] for target in targets}
    assert set(compose()["services"]["network"]["networks"]["default"]["aliases"]) == hosts
    assert "../prometheus:/etc/prometheus:ro" in compose()["services"]["prometheus"]["volumes"]
    [source] = yaml.safe_load((ROOT / "docker/grafana/datasource.yml").read_text("utf-8"))["datasources"]
    assert source["url"] == "http://prometheus:9090"
