"""Tests of zeromq-in with real sockets, and killed gateways and connectors: the pushed messages are in the log in order."""

from __future__ import annotations

import contextlib
import itertools
import signal
from base64 import b64decode
from collections.abc import Callable
from pathlib import Path
from typing import Any

import orjson
import pyarrow as pa
import pytest
import zmq
import zmq.auth

from tests.support.connector_process import ConnectorProcess, records, until_there
from tests.support.running_group import RunningGroup
from tests.support.secured import SecuredFiles
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.faults, pytest.mark.slow, pytest.mark.timeout(150)]
Peer = Callable[[int], Any]
_names = itertools.count(1)
_LET_IN_OR_NOT = (
    zmq.EVENT_HANDSHAKE_SUCCEEDED
    | zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL
    | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL
    | zmq.EVENT_HANDSHAKE_FAILED_AUTH
    | zmq.EVENT_DISCONNECTED
)


def connector(root: Path, url: str, zeromq: str, top: str = "", more: str = "") -> tuple[ConnectorProcess, str]:
    """Start a connector that is bound to a free port. Return it with its name, which is also its topic unless `top` names one."""
    name = f"z{next(_names)}"
    top = top.replace("NAME", name) or f'topic = "{name}"'
    text = (
        f'name = "{name}"\ngateways = "{url}"\nquarantine = "{root}/q"\nmetrics = "127.0.0.1:0"\n{top}\n'
        f'[zeromq]\nbind = ["tcp://127.0.0.1:*"]\n{zeromq}\n{more}\n'
    )
    return ConnectorProcess(root, "zeromq-in", text), name


def measured(one: ConnectorProcess, name: str, what: str) -> float:
    return one.measured()[f'tutti_zeromq_in_{what}{{connector="{name}"}}']


def test_pushed_messages_are_in_the_log_in_order_under_kills(group: RunningGroup, tmp_path: Path, peer: Peer) -> None:
    """Proves that nothing is lost, duplicated or reordered while the process lives, whatever happens to gateways, and that a pusher
    is blocked and loses nothing.
    """
    one, name = connector(tmp_path, group.url, 'socket = "pull"\nhigh_water_mark = 50')
    count = 20_000
    with one:
        push = peer(zmq.PUSH)
        push.set(zmq.SNDHWM, 50)
        push.connect(one.ready["bound"][0])
        for number in range(count):
            if number == 5_000:
                killed = group.coordinator()
                killed.kill()
                killed.start(wait=False)
            push.send(b"%08d" % number + bytes(500))
        found = until_there(group.url, name, count, one)
        killed.wait_ready()
        wait_until(lambda: measured(one, name, "records_total") == count, one.errors)
        assert measured(one, name, "waiting") == 0
        assert one.end() == 0, one.errors()
    assert [int(row["value"][:8]) for row in found] == list(range(count))
    assert {row["producer"] for row in found} == {name}


def test_frames_of_a_message(group: RunningGroup, tmp_path: Path, peer: Peer) -> None:
    """Proves topic, key and value of a message, and that an invalid one is quarantined with its frames and the reason."""
    one, name = connector(
        tmp_path, group.url, 'socket = "sub"\nsubscribe = ["x"]\nframes = ["topic", "skip", "key", "value"]', "# none"
    )
    with one:
        pub = peer(zmq.XPUB)
        pub.connect(one.ready["bound"][0])
        assert pub.recv() == b"\1x"
        topic = f"x{name}".encode()
        pub.send_multipart([topic, b"", b"key", b"1"])
        pub.send_multipart([b"other", b"", b"", b"not asked for"])
        pub.send_multipart([topic, b"two frames"])
        pub.send_multipart([b"x y", b"", b"", b"no topic"])
        pub.send_multipart([topic, b"", b"", b""])
        first, second = until_there(group.url, topic.decode(), 2, one)
        wait_until(lambda: measured(one, name, "quarantined") == 2, one.errors)
    assert [(row["key"], row["value"]) for row in (first, second)] == [(b"key", b"1"), (b"", b"")]
    (file,) = (tmp_path / "q").iterdir()
    told = sorted(map(orjson.loads, file.read_bytes().splitlines()), key=lambda one: int(one["count"]))
    assert told[0]["reason"] == "it has 2 frames, but zeromq.frames names 4"
    assert told[1]["reason"].startswith("its topic is 'x y'")
    assert told[0]["frames"][1] == {"bytes": 10, "base64": "dHdvIGZyYW1lcw=="}


def test_spooled_records_survive_a_crash_without_a_gateway(group: RunningGroup, tmp_path: Path, peer: Peer) -> None:
    """Proves that all that is on the disk is in the log once and in order, when it is killed while no gateway is there."""
    top = f'topic = "NAME"\nspool = "{tmp_path}/spool"'
    one, name = connector(tmp_path, group.url, 'socket = "pull"', top)
    count = 5_000
    push = peer(zmq.PUSH)
    for gateway in group.all.values():
        gateway.kill()
    with one:
        push.connect(one.ready["bound"][0])
        for number in range(count):
            push.send(b"%d" % number)
        wait_until(lambda: measured(one, name, "spooled") == count, one.errors)
        one.end(signal.SIGKILL)
        group.start()
        one.start()
        found = until_there(group.url, name, count, one)
        again = peer(zmq.PUSH)
        again.connect(one.ready["bound"][0])
        again.send(b"%d" % count)
        found = until_there(group.url, name, count + 1, one)
        wait_until(lambda: measured(one, name, "waiting") == 0, one.errors)
        assert one.end() == 0, one.errors()
    assert [int(row["value"]) for row in found] == list(range(count + 1))


@pytest.fixture
def keys(tmp_path: Path) -> Path:
    """Keys of the connector, of a friend, and of a stranger; the first two are known."""
    folder = tmp_path / "keys"
    (folder / "clients").mkdir(parents=True)
    for name in ("own", "friend", "stranger"):
        zmq.auth.create_certificates(folder, name)
    (folder / "friend.key").rename(folder / "clients" / "friend.key")
    return folder


def test_with_keys_only_known_peers_are_accepted(group: RunningGroup, tmp_path: Path, peer: Peer, keys: Path) -> None:
    """Proves that a peer without a key, or with an unlisted one, writes nothing into the log."""
    curve = f'[curve]\ncertificate = "{keys}/own.key_secret"\nclients = "{keys}/clients"'
    one, name = connector(tmp_path, group.url, 'socket = "pull"', more=curve)
    with one:
        for who in ("", "stranger", "friend"):
            push = peer(zmq.PUSH)
            if who:
                public, secret = zmq.auth.load_certificate(keys / f"{who}.key_secret")
                push.set(zmq.CURVE_PUBLICKEY, public)
                push.set(zmq.CURVE_SECRETKEY, secret)
                push.set(zmq.CURVE_SERVERKEY, zmq.auth.load_certificate(keys / "own.key")[0])
            with contextlib.closing(push.get_monitor_socket(_LET_IN_OR_NOT)) as monitor:
                push.connect(one.ready["bound"][0])
                assert monitor.poll(60_000), "neither let in nor turned away"
                push.disable_monitor()
            if who == "friend":
                push.send(b"hello")
            elif push.poll(0, zmq.POLLOUT):
                push.send(b"stranger", zmq.NOBLOCK)
        assert [row["value"] for row in until_there(group.url, name, 1, one)] == [b"hello"]


@pytest.mark.parametrize("spooled", [False, True])
def test_a_topic_that_the_token_does_not_allow_holds_up_no_other(
    tmp_path: Path, peer: Peer, monkeypatch: pytest.MonkeyPatch, spooled: bool
) -> None:
    """Proves that its messages are in quarantine, or refused in the spool, and that later ones never reach the producer."""
    house = SecuredFiles(tmp_path)
    top = f'spool = "{tmp_path}/spool"' if spooled else "# none"
    with house.gateway() as gateway:
        monkeypatch.setenv("TUTTI_TOKEN_FILE", str(house.client_file("feed")))
        one, name = connector(tmp_path, gateway.url, 'socket = "pull"\nframes = ["topic", "value"]', top)
        with one:
            push = peer(zmq.PUSH)
            push.connect(one.ready["bound"][0])
            for number in range(3):
                push.send_multipart([b"flights", b"%d" % number])
                push.send_multipart([b"secret", b"%d" % number])
            wait_until(lambda: "messages to topic secret go to quarantine: topic 'secret' was refused" in one.errors(), one.errors)
            for number in range(3, 6):
                push.send_multipart([b"secret", b"%d" % number])
                push.send_multipart([b"flights", b"%d" % number])
            monkeypatch.setenv("TUTTI_TOKEN_FILE", str(house.client_file("all")))
            found = until_there(gateway.url, "flights", 6, one)
            wait_until(lambda: measured(one, name, "waiting") == 0, one.errors)
            wait_until(lambda: measured(one, name, "quarantined") >= 3, one.errors)
            failures = measured(one, name, "failures_total")
            assert one.end() == 0, one.errors()
        assert records(gateway.url, "secret") == []
    assert [row["value"] for row in found] == [b"%d" % number for number in range(6)]
    assert failures <= 1
    told = [orjson.loads(line) for file in (tmp_path / "q").iterdir() for line in file.read_bytes().splitlines()]
    kept = [b64decode(one["frames"][1]["base64"]) for one in told]
    for file in (tmp_path / "spool" / "refused").glob("*"):
        with pa.ipc.open_stream(file.read_bytes()) as stream:
            kept += [value or b"" for value in stream.read_all().column("value").to_pylist()]
    assert sorted(kept) == [b"%d" % number for number in range(6)]


def test_the_reason_for_a_failed_start_is_reported(group: RunningGroup, tmp_path: Path, peer: Peer) -> None:
    """Proves the exit codes: an address in use, and an older instance after a takeover."""
    taken = peer(zmq.PULL)
    port = taken.bind_to_random_port("tcp://127.0.0.1")
    one, _ = connector(tmp_path, group.url, 'socket = "pull"')
    one.file.write_text(one.file.read_text().replace("*", str(port)))
    with one.start(wait=False):
        assert one.wait() == 2
    assert "cannot be used (address already in use)" in one.errors()
    old, name = connector(tmp_path, group.url, 'socket = "pull"')
    with old:
        new = ConnectorProcess(tmp_path, "zeromq-in", old.file.read_text())
        with new:
            push = peer(zmq.PUSH)
            push.connect(old.ready["bound"][0])
            push.send(b"too late")
            assert old.wait() == 1
    for told in (one, old, new):
        assert "Traceback" not in told.errors()
    assert records(group.url, name) == []
