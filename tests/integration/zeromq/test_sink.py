"""Tests of zeromq-out: real subscribers get the log in its total order, with the fields to detect a gap."""

from __future__ import annotations

import itertools
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import orjson
import pytest
import zmq

from tests.support.connector_process import ConnectorProcess
from tests.support.ports import free_port
from tests.support.running_group import RunningGroup
from tests.support.waiting import wait_until
from tutti.producer import Producer

pytestmark = [pytest.mark.faults, pytest.mark.slow, pytest.mark.timeout(150)]
Peer = Callable[[int], Any]
_names = itertools.count(1)


def publisher(root: Path, url: str, topics: str, zeromq: str = "") -> ConnectorProcess:
    text = (
        f'name = "out{next(_names)}"\ngateways = "{url}"\ntopics = {topics}\nmetrics = "127.0.0.1:0"\n'
        f'[zeromq]\nbind = ["tcp://127.0.0.1:*"]\n{zeromq}\n'
    )
    return ConnectorProcess(root, "zeromq-out", text)


def test_records_are_published_in_order_and_a_gap_can_be_seen(group: RunningGroup, tmp_path: Path, peer: Peer) -> None:
    """Proves that a subscriber gets every record of two topics in the log's order, unchanged, each with the offset before it, and
    that nothing is published without subscribers.
    """
    with Producer(group.url) as producer:
        producer.send("oa", b"first", key=b"k", timestamp=1_700_000_000_000_001, headers=[("h", b"1")])
        producer.send("ob", None)
        for number in range(5_000):
            producer.send(("oa", "ob")[number % 2], b"%d" % number)
    with publisher(tmp_path, group.url, '["oa", "ob"]') as one:
        sub = peer(zmq.SUB)
        sub.set(zmq.RCVHWM, 0)
        sub.connect(one.ready["bound"][0])
        sub.subscribe(b"")
        found = [sub.recv_multipart() for _ in range(5_002)]
        wait_until(lambda: f'{one_name(one)}"}} 5002.0' in page(one), one.errors)
    told = [orjson.loads(meta) for *_, meta in found]
    assert [message[:3] for message in found[:2]] == [[b"oa", b"k", b"first"], [b"ob", b"", b""]]
    assert (told[0]["timestamp"], told[0]["headers"], told[0]["since"]) == ("2023-11-14T22:13:20.000001Z", [["h", "1"]], 0)
    assert told[1]["null"] == ["key", "value"]
    assert [value for _, _, value, _ in found[2:]] == [b"%d" % number for number in range(5_000)]
    offsets = [one["offset"] for one in told]
    assert offsets == sorted(offsets)
    for topic in (b"oa", b"ob"):
        of_it = [meta for (name, *_), meta in zip(found, told, strict=True) if name == topic]
        assert [meta["previous"] for meta in of_it[1:]] == [meta["offset"] for meta in of_it[:-1]]


def page(one: ConnectorProcess) -> str:
    return "\n".join(f"{name} {value}" for name, value in one.measured().items())


def one_name(one: ConnectorProcess) -> str:
    return f'tutti_zeromq_out_records_total{{connector="{one.ready["name"]}'


def test_a_slow_subscriber_is_waited_for(group: RunningGroup, tmp_path: Path, peer: Peer) -> None:
    """Proves that with `slow = "wait"` a subscriber with small buffers gets everything in order."""
    count = 10_000
    with Producer(group.url) as producer:
        for number in range(count):
            producer.send("oc", b"%d" % number + bytes(300))
    with publisher(tmp_path, group.url, '["oc"]', 'slow = "wait"\nhigh_water_mark = 10') as one:
        sub = peer(zmq.SUB)
        sub.set(zmq.RCVHWM, 10)
        sub.connect(one.ready["bound"][0])
        sub.subscribe(b"oc")
        found = [int(sub.recv_multipart()[2].rstrip(b"\0")) for _ in range(count)]
    assert found == list(range(count))


def test_messages_missed_by_a_subscriber_are_reported_across_kills(group: RunningGroup, tmp_path: Path, peer: Peer) -> None:
    """Proves that it continues at the saved position, and that a connected subscriber can see what it missed."""
    count = 10_000
    with Producer(group.url) as producer:
        for number in range(count):
            producer.send("od", b"%d" % number + bytes(300))
    one = publisher(tmp_path, group.url, '["od"]')
    one.file.write_text(one.file.read_text().replace(":*", f":{free_port()}"))
    sub = peer(zmq.SUB)
    sub.set(zmq.RCVHWM, 0)
    sub.subscribe(b"od")
    found: list[int] = []
    last = value = -1
    with one:
        sub.connect(one.ready["bound"][0])
        for turn in (3_000, count):
            while not found or found[-1] < turn - 1:
                before = value
                _, _, body, meta = sub.recv_multipart()
                known, value = orjson.loads(meta), int(body.rstrip(b"\0"))
                told = known.get("previous", known.get("since", 0) - 1) > last
                assert told or value <= before + 1, f"records {before} to {value} are missing, and {known} does not tell"
                assert not told or "since" in known or value > before + 1, f"{known} tells of a gap, and {value} follows {before}"
                last = known["offset"]
                found.append(value)
            if turn < count:
                one.end(signal.SIGKILL)
                one.start()
        assert one.end() == 0, one.errors()
    assert found[0] == 0


def test_a_start_at_latest_survives_a_kill_right_after_the_ready_line(group: RunningGroup, tmp_path: Path, peer: Peer) -> None:
    """Proves that the next instance publishes records sent after the first ready line, and none from before it."""
    one = publisher(tmp_path, group.url, '["ol"]\nstart = "latest"')
    with Producer(group.url) as producer:
        producer.send("ol", b"before").result(30)
        one.start().end(signal.SIGKILL)
        producer.send("ol", b"after").result(30)
        with one.start():
            sub = peer(zmq.SUB)
            sub.connect(one.ready["bound"][0])
            sub.subscribe(b"")
            assert sub.recv_multipart()[2] == b"after"


def test_a_start_at_latest_before_the_log_begins_reads_all_later_records(tmp_path: Path, peer: Peer) -> None:
    """Proves that it is ready once its start is saved, and that the next instance publishes from there."""
    group = RunningGroup(tmp_path)
    try:
        group["g1"].start(wait=False)
        one = publisher(tmp_path, group.url, '["ol"]\nstart = "latest"').start(wait=False)
        wait_until(lambda: "waiting for the log to start" in one.errors(), one.errors)
        for name in ("g2", "g3"):
            group[name].start(wait=False)
        one.wait_ready()
        one.end(signal.SIGKILL)
        with Producer(group.url) as producer:
            producer.send("ol", b"after").result(30)
        with one.start():
            sub = peer(zmq.SUB)
            sub.connect(one.ready["bound"][0])
            sub.subscribe(b"")
            assert sub.recv_multipart()[2] == b"after"
    finally:
        group.__exit__()


def test_the_reason_for_a_failed_start_is_reported(group: RunningGroup, tmp_path: Path) -> None:
    """Proves that an endpoint that makes no sense is named."""
    wrong = publisher(tmp_path, group.url, '["oa"]')
    wrong.file.write_text("insecure = true\n" + wrong.file.read_text().replace("127.0.0.1:*", "nowhere.invalid:1"))
    with wrong.start(wait=False):
        assert wrong.wait() == 2
    assert "zeromq.bind: tcp://nowhere.invalid:1 cannot be used" in wrong.errors()
    assert "Traceback" not in wrong.errors()
