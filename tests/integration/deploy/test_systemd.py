"""Tests of the systemd units: systemd accepts them, they are confined, and their commands run as written."""

from __future__ import annotations

import configparser
import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.faults.lab.network import Network
from tests.integration.deploy.sandbox import ROOT, Box, Mount, ready, stopping
from tutti_gateway.cli.commands import COMMANDS

pytestmark = [pytest.mark.lab, pytest.mark.timeout(300)]
UNITS = ROOT / "deploy/systemd"
HERE = "here"
EXPOSURE_MAX = 2.0  # of 10, as `systemd-analyze security` counts; what is left is the network, which is what a gateway is for


def service(name: str, instance: str) -> dict[str, str]:
    """The [Service] of a unit."""
    parser = configparser.ConfigParser(interpolation=None, strict=False)
    parser.optionxform = str  # type: ignore[assignment,method-assign]  # names keep their capitals
    parser.read_string((UNITS / name).read_text("utf-8"))
    return {key: value.replace("%i", instance) for key, value in parser["Service"].items()}


@pytest.mark.parametrize("unit", sorted(path.name for path in UNITS.glob("*.service")))
def test_systemd_finds_nothing_wrong_and_they_are_confined(unit: str, tmp_path: Path) -> None:
    assert shutil.which("systemd-analyze"), "systemd-analyze is missing (Debian: apt-get install systemd)"
    with Network([HERE]) as network, Box(network, HERE, tmp_path, [Mount(UNITS, "/units"), Mount(None, "/tmp")]) as box:
        # Only what it says of ours counts, not what other units of this machine lack.
        verify = box.command("systemd-analyze", "verify", "--man=no", f"/units/{unit}")
        said = subprocess.run(verify, capture_output=True, text=True, check=False).stderr
        assert "command not found" not in said
        assert [line for line in said.splitlines() if unit.partition("@")[0] in line] == []
        judged = box.run("systemd-analyze", "security", "--offline=yes", "--no-pager", f"/units/{unit}")
    found = re.search(r"Overall exposure level for \S+: ([\d.]+)", judged)
    assert found, judged
    assert float(found[1]) <= EXPOSURE_MAX


@pytest.mark.slow
def test_the_command_of_the_gateway_unit_starts_and_stops(tmp_path: Path) -> None:
    unit = service("tutti@.service", "jfk")
    state = tmp_path / "state"
    state.mkdir()
    mounts = [
        Mount(ROOT / "conf/minimal.toml", "/etc/tutti/jfk.toml"),
        Mount(state, f"/var/lib/{unit['StateDirectory']}", writable=True),
        Mount(None, "/tmp"),
    ]
    with Network([HERE]) as network, Box(network, HERE, tmp_path / "box", mounts, directory=unit["WorkingDirectory"]) as box:
        box.run(*unit["ExecStartPre"].split())
        gateway = box.start(*unit["ExecStart"].split())
        with stopping([gateway]):
            url = ready(gateway, box)["url"]
            assert json.loads(box.run("tutti", "status", "--json", "--url", url))["state"] == "primary"
    assert (state / "data/jfk/identity.json").is_file()


def test_exit_codes_in_the_units_match_the_commands() -> None:
    """2 wants a person, and 4; the others pass, and systemd starts again."""
    gateway, connector = service("tutti@.service", "jfk"), service("tutti-connect@.service", "kafka-in")
    assert gateway["RestartPreventExitStatus"] == "2 4"
    assert connector["RestartPreventExitStatus"] == "2 4"
    assert {gateway["Restart"], connector["Restart"]} == {"on-failure"}
    assert connector["ExecStart"].split()[1:3] == ["connect", "kafka-in"]
    assert {"serve", "connect"} <= set(COMMANDS)
