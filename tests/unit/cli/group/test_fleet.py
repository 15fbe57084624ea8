"""Tests of `tutti dev`: one ready line, a killed gateway restarts, signals stop all gateways, and no process remains."""

from __future__ import annotations

import fcntl
import json
import os
import signal
import socket
import subprocess
import sys
import time
import tomllib
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest

from tests.support.ports import free_base
from tests.support.processes import alive, expect_end
from tests.support.waiting import wait_until
from tutti_gateway.cli.group.fleet import Fleet
from tutti_gateway.cli.group.gateway_directories import GatewayPaths
from tutti_gateway.core import limits
from tutti_gateway.node.common.port_check import PortInUse

# Each test starts `tutti dev` and the processes of its gateways.
pytestmark = pytest.mark.slow

#: Stands in for `tutti serve`: what it does is told by files beside its configuration.
GATEWAY = """\
import json, os, signal, sys, time
config = sys.argv[1]
place = os.path.dirname(config)
with open(os.path.join(place, "options"), "w") as options:
    options.write(" ".join(sys.argv[2:]))
with open(os.path.join(place, "starts"), "a") as starts:
    starts.write(f"{os.getpid()}\\n")
code = os.path.join(place, "code")
if os.path.exists(code):
    sys.exit(int(open(code).read()))
signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
signal.signal(signal.SIGINT, signal.SIG_IGN)
print("a line that is no JSON")
print(json.dumps({"ready": True}), flush=True)
while True:
    time.sleep(60)
"""
DEV = """\
import sys
from pathlib import Path
from tutti_gateway.cli.group import fleet
from tutti_gateway.cli.main import main
fleet.serve_command = lambda config, *options: [sys.executable, "-c", {gateway!r}, str(config), *options]
fleet.wait_free = lambda *_: None  # fake gateways use no port
fleet.READY_WAIT_S_MAX = 10.0
sys.exit(main(sys.argv[1:]))
"""


class Dev:
    """A `tutti dev` with fake gateways."""

    def __init__(self, directory: Path, *options: str, port: int = 7400, stderr: int = subprocess.PIPE) -> None:
        self.directory = directory
        given = ["dev", "--port", str(port), "--data", str(directory), *options]
        command = [sys.executable, "-c", DEV.format(gateway=GATEWAY), *given]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=stderr, text=True)

    def ready(self) -> dict[str, object]:
        assert self.process.stdout is not None
        told: dict[str, object] = json.loads(self.process.stdout.readline())
        return told

    def starts(self) -> list[int]:
        file = self.directory / "starts"
        return [int(line) for line in file.read_text().splitlines()] if file.exists() else []

    def stop(self, number: int = signal.SIGTERM) -> tuple[int, str, str]:
        self.process.send_signal(number)
        out, err = self.process.communicate(timeout=20)
        return self.process.returncode, out, err


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Dev]]:
    started: list[Dev] = []

    def start_it(*options: str, port: int = 7400) -> Dev:
        started.append(Dev(tmp_path, *options, port=port))
        return started[-1]

    yield start_it
    for dev in started:
        dev.process.kill()
        dev.process.communicate()
    expect_end(*(pid for dev in started for pid in dev.starts()))


def is_longer(dev: Dev, before: list[int]) -> bool:
    return len(dev.starts()) > len(before)


def test_one_line_tells_that_all_are_ready_and_sigterm_stops_all(start: Callable[..., Dev], tmp_path: Path) -> None:
    dev = start()
    told = dev.ready()
    [pid] = dev.starts()
    gateway = {"name": "g1", "url": "tutti://127.0.0.1:7400", "pid": pid, "data": str(tmp_path / "g1")}
    assert told == {"ready": True, "url": "tutti://127.0.0.1:7400", "gateways": [gateway]}
    assert dev.stop() == (0, "", "")
    assert not alive(pid)


def test_three_gateways_are_one_group_of_neighbouring_ports(start: Callable[..., Dev], tmp_path: Path) -> None:
    dev = start("--gateways", "3", port=7500)
    told = dev.ready()
    gateways = told["gateways"]
    assert isinstance(gateways, list)
    assert told["url"] == "tutti://127.0.0.1:7500,127.0.0.1:7510,127.0.0.1:7520"
    assert [(one["name"], one["url"]) for one in gateways] == [
        ("g1", "tutti://127.0.0.1:7500"),
        ("g2", "tutti://127.0.0.1:7510"),
        ("g3", "tutti://127.0.0.1:7520"),
    ]
    assert sorted(one["pid"] for one in gateways) == sorted(dev.starts())
    members = {"g1": "127.0.0.1:7500", "g2": "127.0.0.1:7510", "g3": "127.0.0.1:7520"}
    for place, name in enumerate(members):
        written = tomllib.loads((tmp_path / f"{name}.toml").read_text())
        assert (written["name"], written["listen"], written["data"]) == (name, members[name], gateways[place]["data"])
        assert written["group"] == {"name": "dev", "preset": "local", "members": members}
    assert dev.stop() == (0, "", "")
    assert not any(alive(pid) for pid in dev.starts())


def test_a_killed_gateway_of_three_restarts_and_the_others_stay(start: Callable[..., Dev]) -> None:
    dev = start("--gateways", "3", "--restart-after", "0.1")
    dev.ready()
    before = dev.starts()
    os.kill(before[1], signal.SIGKILL)
    wait_until(lambda: len(dev.starts()) == 4)
    assert alive(before[0])
    assert alive(before[2])
    assert dev.stop()[0] == 0


def test_one_of_three_that_left_is_not_restarted_and_the_others_continue(start: Callable[..., Dev]) -> None:
    dev = start("--gateways", "3", "--restart-after", "0.1")
    dev.ready()
    os.kill(dev.starts()[0], signal.SIGTERM)
    assert dev.process.stderr is not None
    assert "ended with exit code 0 and is not restarted" in dev.process.stderr.readline()
    time.sleep(0.3)
    assert len(dev.starts()) == 3
    assert sum(alive(pid) for pid in dev.starts()) == 2


@pytest.mark.parametrize(("count", "bear"), [(2, "the loss of none, as 1 does"), (4, "the loss of 1, as 3 do")])
def test_an_even_number_of_gateways_is_warned_about(start: Callable[..., Dev], count: int, bear: str) -> None:
    dev = start("--gateways", str(count))
    dev.ready()
    assert dev.stop() == (0, "", f"dev: {count} gateways tolerate {bear}: choose an odd number\n")


def test_ports_that_do_not_exist_are_refused(start: Callable[..., Dev]) -> None:
    out, err = start("--gateways", "3", port=65_520).process.communicate(timeout=20)
    assert (out, err) == ("", "error: --port 65520: the last of 3 gateways would have port 65540; the limit is 65532\n")


def founded(tmp_path: Path, start: Callable[..., Dev], count: str, port: int = 7400) -> None:
    """A directory in which gateways have begun a log."""
    dev = start("--gateways", count, port=port)
    for one in dev.ready()["gateways"]:  # type: ignore[attr-defined]  # plain JSON
        Path(one["data"]).mkdir()
        Path(one["data"], "identity.json").write_text("{}")
    dev.stop()


def test_another_number_of_gateways_than_a_log_was_founded_by_is_refused(start: Callable[..., Dev], tmp_path: Path) -> None:
    founded(tmp_path, start, "1")
    dev = start("--gateways", "3")
    out, err = dev.process.communicate(timeout=20)
    assert (dev.process.returncode, out) == (2, "")
    assert err == (
        f"error: {tmp_path} holds a group of 1 (g1), not 3: members change through the log, with `tutti members add` "
        "or `remove`; start the group with its members, or choose another --data\n"
    )
    assert not (tmp_path / "g2.toml").exists()
    assert start("--gateways", "1").ready()["ready"] is True


def test_gateways_that_know_each_other_keep_their_ports(start: Callable[..., Dev], tmp_path: Path) -> None:
    founded(tmp_path, start, "3")
    out, err = start("--gateways", "3", port=7500).process.communicate(timeout=20)
    assert out == ""
    assert err == (
        f"error: the gateways in {tmp_path} have the addresses 127.0.0.1:7400, 127.0.0.1:7410, 127.0.0.1:7420: "
        "start them with --port 7400, or choose another --data\n"
    )
    assert start("--gateways", "3").ready()["ready"] is True


def test_serve_accepts_its_configuration(start: Callable[..., Dev], tmp_path: Path) -> None:
    from tutti_gateway.config import load_config

    start().ready()
    config = load_config(tmp_path / "g1.toml")
    assert (config.name, config.data, config.listen) == ("g1", str(tmp_path / "g1"), "127.0.0.1:7400")


def test_keys_are_made_once_and_named_in_each_configuration(start: Callable[..., Dev], tmp_path: Path) -> None:
    from tutti_gateway.config import load_config

    dev = start("--gateways", "3", "--keys")
    dev.ready()
    made = {file.name: file.read_bytes() for file in (tmp_path / "keys").iterdir()}
    assert set(made) == {"g1.secret", "g2.secret", "g3.secret", "group.keys"}
    for name in ("g1", "g2", "g3"):
        assert load_config(tmp_path / f"{name}.toml").security.has_keys
    dev.stop()
    start("--gateways", "3", "--keys").ready()
    assert {file.name: file.read_bytes() for file in (tmp_path / "keys").iterdir()} == made


def test_the_log_level_is_handed_on(start: Callable[..., Dev], tmp_path: Path) -> None:
    start("--log-level", "debug").ready()
    assert (tmp_path / "options").read_text() == "--log-level debug"


def test_ctrl_c_of_the_terminal_reaches_the_gateways_as_an_orderly_stop(start: Callable[..., Dev]) -> None:
    dev = start()
    dev.ready()
    [pid] = dev.starts()
    assert os.getsid(pid) == pid  # so that the terminal's Ctrl-C does not reach it
    code, _, err = dev.stop(signal.SIGINT)
    assert (code, err) == (0, "")


def test_a_killed_gateway_is_started_again(start: Callable[..., Dev]) -> None:
    dev = start("--restart-after", "0.1")
    dev.ready()
    os.kill(dev.starts()[-1], signal.SIGKILL)
    wait_until(lambda: len(dev.starts()) == 2)
    os.kill(dev.starts()[-1], signal.SIGKILL)
    wait_until(lambda: len(dev.starts()) == 3)
    code, out, err = dev.stop()
    assert (code, out) == (0, "")
    assert "dev: g1 was killed by SIGKILL; it restarts in 0.1 s\n" in err
    assert len(dev.starts()) == 3


def test_its_output_about_gateways_may_have_no_reader(start: Callable[..., Dev]) -> None:
    dev = start("--restart-after", "0.1")
    dev.ready()
    assert dev.process.stderr is not None
    dev.process.stderr.close()
    dev.process.stderr = None
    os.kill(dev.starts()[-1], signal.SIGKILL)
    wait_until(lambda: len(dev.starts()) == 2)
    assert dev.stop()[0] == 0


def test_output_to_a_blocked_terminal_keeps_no_gateway_down(tmp_path: Path) -> None:
    """A stopped terminal and an unread pipe accept only as much as they have space for."""
    reading, writing = os.pipe()
    fcntl.fcntl(writing, fcntl.F_SETPIPE_SZ, 4096)
    os.write(writing, b"x" * 4096)
    dev = Dev(tmp_path, "--restart-after", "0.1", stderr=writing)
    try:
        dev.ready()
        for _ in range(3):
            before = dev.starts()
            os.kill(before[-1], signal.SIGKILL)
            wait_until(partial(is_longer, dev, before))
        dev.process.send_signal(signal.SIGTERM)
        assert dev.process.wait(20) == 0
    finally:
        dev.process.kill()
        dev.process.communicate()
        os.close(reading)
        os.close(writing)
    expect_end(*dev.starts())


def test_restart_after_0_leaves_a_killed_gateway_down(start: Callable[..., Dev]) -> None:
    dev = start("--gateways", "3", "--restart-after", "0")
    dev.ready()
    os.kill(dev.starts()[-1], signal.SIGKILL)
    assert dev.process.stderr is not None
    assert dev.process.stderr.readline().endswith(" was killed by SIGKILL; --restart-after 0 leaves it down\n")
    assert dev.stop() == (0, "", "")
    assert len(dev.starts()) == 3


def test_restart_after_0_ends_dev_with_the_last_gateway(start: Callable[..., Dev], tmp_path: Path) -> None:
    dev = start("--gateways", "3", "--restart-after", "0")
    dev.ready()
    for pid in dev.starts():
        os.kill(pid, signal.SIGKILL)
    _, said = dev.process.communicate(timeout=20)
    assert (dev.process.returncode, said.count("--restart-after 0 leaves it down\n")) == (1, 3)


def test_a_gateway_that_left_in_order_stays_away_and_the_last_one_ends_dev(start: Callable[..., Dev]) -> None:
    dev = start()
    dev.ready()
    os.kill(dev.starts()[-1], signal.SIGTERM)
    assert dev.process.wait(20) == 0
    assert len(dev.starts()) == 1


@pytest.mark.parametrize("code", [1, 2, 3, 4])
def test_a_gateway_that_cannot_start_ends_dev_with_its_code(start: Callable[..., Dev], tmp_path: Path, code: int) -> None:
    (tmp_path / "code").write_text(str(code))
    dev = start()
    out, err = dev.process.communicate(timeout=20)
    assert (dev.process.returncode, out, err) == (code, "", "")


def test_damage_found_at_a_later_start_ends_dev(start: Callable[..., Dev], tmp_path: Path) -> None:
    dev = start("--restart-after", "0.1")
    dev.ready()
    (tmp_path / "code").write_text("4")
    os.kill(dev.starts()[-1], signal.SIGKILL)
    assert dev.process.wait(20) == 4


def test_gateways_do_not_outlive_a_dev_that_is_killed(start: Callable[..., Dev]) -> None:
    dev = start()
    dev.ready()
    pid = dev.starts()[-1]
    dev.process.kill()
    expect_end(pid)


def test_a_second_dev_is_refused_before_it_changes_the_files_of_the_first(start: Callable[..., Dev], tmp_path: Path) -> None:
    dev = start("--restart-after", "0.1")
    dev.ready()
    written = (tmp_path / "g1.toml").read_text()
    second = start(port=7500)
    out, err = second.process.communicate(timeout=20)
    said = f"error: {tmp_path} is in use by `tutti dev`, process {dev.process.pid}: stop it first, or choose another --data\n"
    assert (second.process.returncode, out, err) == (1, "", said)
    assert (tmp_path / "g1.toml").read_text() == written
    dev.stop()
    third = start(port=7500)
    assert third.ready()["url"] == "tutti://127.0.0.1:7500"


def test_a_gateway_that_serve_runs_keeps_the_configuration_it_runs_from(start: Callable[..., Dev], tmp_path: Path) -> None:
    dev = start()
    dev.ready()
    dev.stop()
    written = (tmp_path / "g1.toml").read_text()
    (tmp_path / "g1").mkdir()
    with (tmp_path / "g1" / "LOCK").open("w+") as lock:
        lock.write("4711\n")
        lock.flush()
        fcntl.flock(lock, fcntl.LOCK_EX)
        out, err = start(port=7500).process.communicate(timeout=20)
        assert (out, err.count("\n")) == ("", 1)
        assert f"{tmp_path / 'g1'} is in use by gateway g1, process 4711" in err
        assert (tmp_path / "g1.toml").read_text() == written
        start().ready()  # the same port: `tutti serve` waits for one that is about to end


def test_a_port_in_use_is_reported_before_a_gateway_starts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "PORT_WAIT_US", 0)
    base = free_base()
    reads = base + 2
    with socket.create_server(("127.0.0.1", reads)):
        paths = [GatewayPaths("g1", f"127.0.0.1:{base}", tmp_path / "g1", tmp_path / "g1.toml")]
        wanted = f"port {reads} on 127.0.0.1 .reads of g1. is in use: .* or choose other ports, such as --port [0-9]+$"
        with pytest.raises(PortInUse, match=wanted):
            Fleet(paths, 0).run()
