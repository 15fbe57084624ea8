"""Tests of three real gateways with keys and the operator's tasks: status, adding a gateway, replacing a disk,
removing a gateway.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from tests.support.commands import TUTTI, WAIT_S, DevGroup, shell, tutti
from tests.support.ports import free_base
from tests.support.processes import expect_end
from tests.support.waiting import wait_until

RESTART_AFTER_S = 2


@pytest.fixture(scope="module")
def group(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DevGroup]:
    """Ports of a fourth gateway are free, too."""
    directory = tmp_path_factory.mktemp("group") / "dev"
    options = ["--gateways", "3", "--keys", "--restart-after", str(RESTART_AFTER_S), "--log-level", "debug"]
    running = DevGroup(free_base(4), directory, *options)
    try:
        yield running
    finally:
        if running.process.poll() is None:
            assert running.stop() == 0


def members(group: DevGroup) -> dict[str, dict[str, Any]]:
    return {one["name"]: one for one in tutti("members", "--json", url=group.url).json}


def votes(group: DevGroup, *names: str) -> bool:
    found = members(group)
    return all(found[name]["voter"] and found[name]["state"] == "primary" for name in names)


def pid_of(group: DevGroup, name: str) -> int:
    number = int(name[1:]) - 1
    pid: int = tutti("status", "--json", "--url", f"tutti://127.0.0.1:{group.port + 10 * number}").json["pid"]
    return pid


@contextmanager
def fourth(group: DevGroup) -> Iterator[subprocess.Popen[str]]:
    """One more gateway, which is not in the group yet."""
    listed = [f'g{number + 1} = "127.0.0.1:{group.port + 10 * number}"' for number in range(4)]
    config = group.directory / "g4.toml"
    config.write_text(
        f'name = "g4"\ndata = "{group.directory / "g4"}"\nlisten = "127.0.0.1:{group.port + 30}"\n'
        f'[group]\nname = "dev"\npreset = "local"\nmembers = {{ {", ".join(listed)} }}\n'
        '[security]\nsecret_key = "keys/g4.secret"\npublic_keys = "keys/group.keys"\n'
    )
    assert tutti("keys", "new", "--out", str(group.directory / "keys"), "g4").code == 0  # the others read its key while they run
    with (group.directory / "g4.log").open("w") as log:
        running = subprocess.Popen([*TUTTI, "serve", "--config", str(config)], stdout=subprocess.PIPE, stderr=log, text=True)
    try:
        yield running
    finally:
        running.terminate()
        running.communicate(timeout=WAIT_S)


def _heeds_ctrl_c() -> None:
    """Restore SIGINT: a suite started in the background ignores it, and its children inherit that."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def test_all_are_seen_from_one(group: DevGroup) -> None:
    wait_until(lambda: votes(group, "g1", "g2", "g3"))
    found = members(group)
    assert list(found) == ["g1", "g2", "g3"]
    assert [one["coordinator"] for one in found.values()].count(True) == 1
    assert sorted(one["age"] for one in found.values()) == [1, 2, 3]
    watched = [*TUTTI, "status", "--watch", "--json", "--url", f"tutti://127.0.0.1:{group.port}"]
    with subprocess.Popen(
        watched,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        preexec_fn=_heeds_ctrl_c,  # noqa: PLW1509 - it calls sigaction(2) alone
    ) as watch:
        assert watch.stdout is not None
        for line in watch.stdout:
            sights = json.loads(line)["gateways"]
            if [(sight["gateway"], sight["state"]) for sight in sights] == [(name, "primary") for name in ("g1", "g2", "g3")]:
                break
        watch.send_signal(signal.SIGINT)


def test_a_record_sent_at_one_gateway_is_read_at_another(group: DevGroup) -> None:
    first, second, third = (f"tutti://127.0.0.1:{group.port + 10 * number}" for number in range(3))
    assert tutti("produce", "--topic", "t", given=b"1\n2\n3\n", url=first).code == 0
    assert tutti("produce", "--topic", "t", given=b"4\n", url=second).code == 0
    wait_until(lambda: tutti("status", "--json", url=third).json["frontier"] >= 4)
    assert tutti("tail", "--topic", "t", "--format", "value", "-n", "4", url=third).lines == ["1", "2", "3", "4"]


def test_a_message_is_followed_through_all_of_them(group: DevGroup) -> None:
    assert tutti("produce", "--topic", "t", "--producer", "p", given=b"5\n", url=f"tutti://127.0.0.1:{group.port + 20}").code == 0

    def decided_by() -> set[str]:
        done = tutti("trace", str(group.log), "--producer", "p", "--sequence", "1", "--json")
        return {told["gateway"] for line in done.lines if (told := json.loads(line))["event"] == "decided"}

    wait_until(lambda: decided_by() == {"g1", "g2", "g3"})
    whats = [line.split("\t")[1:3] for line in tutti("trace", str(group.log), "--producer", "p", "--sequence", "1").lines[2:]]
    assert whats[0] == ["g3", "submitted"]
    assert ["g3", "receipt"] in whats
    assert all([name, what] in whats for name in ("g1", "g2", "g3") for what in ("written", "durable", "decided"))


def test_a_gateway_is_added_during_writes_and_removed_again(group: DevGroup) -> None:
    with fourth(group) as running:
        address = f"127.0.0.1:{group.port + 30}"
        added = tutti("members", "add", "g4", address, "--timeout", str(2 * WAIT_S), "--json", url=group.url)
        assert added.code == 0, added.err
        assert added.json["ok"] is True
        wait_until(lambda: votes(group, "g1", "g2", "g3", "g4"))
        again = tutti("members", "add", "g4", address, "--timeout", str(2 * WAIT_S), url=group.url)
        assert again.code == 0
        assert tutti("produce", "--topic", "t", given=b"6\n", url=f"tutti://{address}").code == 0
        removed = tutti("members", "remove", "g4", url=group.url)
        assert (removed.code, removed.err) == (0, "g4 is removed from the group; stop its process\n")
        assert list(members(group)) == ["g1", "g2", "g3"]
        assert running.poll() is None


def test_a_gateway_that_lost_its_disk_is_replaced(group: DevGroup) -> None:
    killed = pid_of(group, "g3")
    os.kill(killed, signal.SIGKILL)
    expect_end(killed)
    (group.directory / "g3").rename(group.directory / "lost")  # at once: before it is started again
    shutil.rmtree(group.directory / "lost")
    wait_until(lambda: members(group)["g3"]["state"] not in ("silent", "primary"))
    assert not members(group)["g3"]["voter"]
    done = tutti("members", "replace", "g3", "--timeout", str(WAIT_S), url=group.url)
    assert (done.code, done.err.splitlines()[-1]) == (0, "g3 votes with its new disk")
    wait_until(lambda: votes(group, "g1", "g2", "g3"))
    needless = tutti("members", "replace", "g3", url=group.url)
    said = "error: gateway g3 already votes with its current disk: `replace` is only for a gateway that lost its disk\n"
    assert (needless.code, needless.err) == (1, said)


def test_the_coordinator_is_killed_and_comes_back(group: DevGroup) -> None:
    coordinator = next(name for name, one in members(group).items() if one["coordinator"])
    os.kill(pid_of(group, coordinator), signal.SIGKILL)
    assert tutti("produce", "--topic", "t", given=b"7\n", url=group.url).code == 0
    wait_until(lambda: votes(group, "g1", "g2", "g3"))


def test_a_gateway_leaves_in_order_and_is_not_started_again(group: DevGroup) -> None:
    wait_until(lambda: votes(group, "g1", "g2", "g3"))
    left = tutti("leave", "g2", url=group.url)
    assert (left.code, left.err) == (0, "g2 has left\n")
    wait_until(lambda: "dev: g2 ended with exit code 0 and is not restarted" in group.log.read_text())
    wait_until(lambda: members(group)["g2"]["state"] == "silent")  # its last heartbeat, which says that it leaves, is soon old
    assert tutti("produce", "--topic", "t", given=b"8\n", url=group.url).code == 0
    again = tutti("leave", "g2", url=group.url)
    assert (again.code, again.err) == (1, "error: g2 is not reachable: it has left already, is down, or is disconnected\n")


def test_the_logs_of_those_that_are_left_are_the_same(group: DevGroup) -> None:
    def digests() -> set[str]:
        done = [tutti("log", "digest", str(group.directory / name), "--end", "8") for name in ("g1", "g3")]
        return {one.out for one in done} if all(one.code == 0 for one in done) else set()

    wait_until(lambda: len(digests()) == 1)


def test_the_last_gateway_continues_alone_by_a_forced_roster(group: DevGroup) -> None:
    refused = tutti("roster", "force", "--keep", "g1", "--yes", "--timeout", "2", url=group.url)
    assert refused.code in (1, 3)
    wait_until(lambda: votes(group, "g1", "g3"))
    left = tutti("leave", "g3", url=group.url)
    assert left.err.startswith(
        "1 of 3 remains, which is not a majority: the group takes no records until another gateway returns\n"
    )
    assert left.code == 0
    wait_until(lambda: members(group)["g1"]["state"] == "minority")
    for options in (["-n", "1"], ["--last", "1"]):
        command = [*TUTTI, "tail", "--url", group.url, *options]
        tail = subprocess.run(command, capture_output=True, text=True, timeout=WAIT_S, check=True)
        assert "no gateway can confirm its frontier with a majority: reading to offset" in tail.stderr
        assert tail.stderr.count("\n") == tail.stdout.count("\n") == 1
    # In a search of 600 s, only a named reason can end the command within the time limit of the test.
    for change in (("remove", "g2"), ("replace", "g2"), ("add", "g9", "127.0.0.1:1")):
        late = tutti("members", *change, "--timeout", "600", url=group.url)
        assert late.code == 3, late.err
        error = late.err.splitlines()[-1]
        assert error.startswith(
            "error: the group has no majority, so it cannot complete this change. Reached: g1 (minority: not heard"
        )
        assert "Not reached: g2 (connection refused), g3 (connection refused)." in error
        assert "`tutti roster force --keep g1`" in error
    assert "refuses connections to its group port: no gateway runs there" in members(group)["g3"]["reason"]
    forced = tutti("roster", "force", "--keep", "g1", "--yes", "--timeout", str(WAIT_S), "--json", url=group.url)
    assert forced.code == 0, forced.err
    assert [one["name"] for one in forced.json["members"]] == ["g1"]
    assert tutti("produce", "--topic", "t", given=b"9\n", url=group.url).code == 0
    for attempt in (1, 2):  # it learns that it is out, and does not begin again
        back = shell("serve", "--config", str(group.directory / "g3.toml"))
        assert back.code == attempt, back.err
    assert "no gateway can start on data directory" in back.err
