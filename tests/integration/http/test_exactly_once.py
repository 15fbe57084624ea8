"""Tests of posts with a sequence: they commit once and in order, at any process, and despite kills."""

from __future__ import annotations

import http.client
import random
import signal
import threading
import time
from pathlib import Path

import pytest

from tests.integration.http.connector import Front
from tests.support.running_group import RunningGroup
from tests.support.waiting import wait_until
from tutti.io.admin import AdminClient
from tutti.reader import Reader

pytestmark = pytest.mark.faults
CUT = """
import os, signal
import tutti_connect.http.handlers as handlers
handlers._committed = lambda *_: os.kill(os.getpid(), signal.SIGKILL)
"""

NO_BEGIN = """
from tutti_connect.http.produce.post_history import History
decode = History.decode
def without(*told):
    found = decode(*told)
    found.begin = -1
    return found
History.decode = without
"""


def rows(group: RunningGroup, topic: str, producer: str) -> list[tuple[int | None, bytes | None]]:
    """(sequence, value) of a producer's records."""
    with Reader(group.url, topics=[topic], start="earliest") as reader:
        return [(record.sequence, record.value) for record in reader.records() if record.producer == f"web.{producer}"]


def test_killed_between_the_commit_and_the_answer(group: RunningGroup, fronts: tuple[Front, Front], tmp_path: Path) -> None:
    one, other = fronts
    with Front(tmp_path, group.url, before=CUT) as doomed, pytest.raises((http.client.HTTPException, ConnectionError)):
        doomed.post_once("cut", "cut", 1, ["a", "b"])
    first = one.post_once("cut", "cut", 1, ["a", "b"])
    assert (first.status, first.json["repeated"]) == (200, True), first.body
    with Reader(group.url, topics=["cut"], start=0) as reader:
        assert [record.offset for record in reader.records()] == [first.json["offset"], first.json["offset"] + 1]
    assert other.post_once("cut", "cut", 3, ["c"]).json["repeated"] is False
    assert one.post_once("cut", "cut", 1, ["a", "b"]).json == first.json
    assert rows(group, "cut", "cut") == [(1, b"a"), (2, b"b"), (3, b"c")]


def test_conflicts_by_turns_at_two_processes(group: RunningGroup, fronts: tuple[Front, Front]) -> None:
    one, other = fronts
    assert one.post_once("turns", "turns", 1, ["a", "b"]).status == 200
    assert other.post_once("turns", "turns", 3, ["c"]).status == 200
    gap = one.post_once("turns", "turns", 5, ["e"])
    assert (gap.status, gap.json["conflict"], gap.json["expected"]) == (409, "gap", 4)
    overlap = one.post_once("turns", "turns", 3, ["c", "d"])
    assert (overlap.status, overlap.json["conflict"], overlap.json["expected"]) == (409, "overlap", 4)
    assert one.post_once("turns", "turns", 3, ["x"]).json["conflict"] == "different"
    assert other.get("/v1/producers/turns").json == {"producer": "turns", "expected": 4}
    assert one.post_once("turns", "turns", 4, ["d"]).status == 200
    assert rows(group, "turns", "turns") == [(1, b"a"), (2, b"b"), (3, b"c"), (4, b"d")]


def test_an_outcome_unknown_to_every_process_is_found_in_the_log(
    group: RunningGroup, fronts: tuple[Front, Front], tmp_path: Path
) -> None:
    one, _ = fronts
    offsets = [one.post_once("old", "old", number, [f"v{number}"]).json["offset"] for number in range(1, 30)]
    with Front(tmp_path, group.url) as fresh:
        again = fresh.post_once("old", "old", 3, ["v3"])
        assert (again.status, again.json["repeated"], again.json["offset"]) == (200, True, offsets[2])
        assert fresh.post_once("old", "old", 3, ["other"]).json["conflict"] == "different"


def test_a_forgotten_producer_begins_with_one_at_every_process(
    group: RunningGroup, fronts: tuple[Front, Front], tmp_path: Path
) -> None:
    one, other = fronts
    assert one.post_once("anew", "anew", 1, ["v1"]).status == 200
    with AdminClient(group.url) as control:
        control.forget(["web.anew"])
    answers = [one.post_once("anew", "anew", number, [f"v{number}"]).json for number in range(1, 16)]
    assert not any(answer["repeated"] for answer in answers)
    assert other.post_once("anew", "anew", 1, ["v1"]).json == {**answers[0], "repeated": True}
    with Front(tmp_path, group.url, before=NO_BEGIN) as third:
        assert third.post_once("anew", "anew", 2, ["v2"]).json == {**answers[1], "repeated": True}
    assert len(rows(group, "anew", "anew")) == 16


@pytest.mark.soak
def test_kills_under_load(group: RunningGroup, tmp_path: Path) -> None:
    """Two processes and the coordinator are killed while clients post and repeat: each record is in the log once, in order."""
    killed_under_load(group, tmp_path, "kills", 1)


@pytest.mark.soak
@pytest.mark.timeout(900)
def test_kills_under_load_for_long(group: RunningGroup, tmp_path: Path) -> None:
    killed_under_load(group, tmp_path, "soaked", 4)


def killed_under_load(group: RunningGroup, tmp_path: Path, topic: str, rounds: int) -> None:
    fronts = [Front(tmp_path, group.url).start(), Front(tmp_path, group.url).start()]
    over = threading.Event()
    posted: dict[str, int] = {}
    failed: list[str] = []

    def client(name: str) -> None:
        chance, following = random.Random(name), 1
        while not over.is_set():
            count = chance.randint(1, 20)
            values = [f"{name}-{number}" for number in range(following, following + count)]
            while True:
                front = chance.choice(fronts)
                try:
                    answer = front.post_once(topic, f"{topic}-{name}", following, values)
                except (http.client.HTTPException, OSError):
                    time.sleep(0.05)
                    continue
                if answer.status == 200:
                    break
                if answer.status != 503:
                    failed.append(f"{answer.status} {answer.body!r}")
                    return
                time.sleep(0.05)
            following += count
            posted[name] = following - 1

    clients = [threading.Thread(target=client, args=(f"c{number}",)) for number in range(4)]
    for thread in clients:
        thread.start()
    wait_until(lambda: len(posted) == 4 or failed)

    def go_on() -> None:
        before = sum(posted.values())
        wait_until(lambda: sum(posted.values()) > before + 100 or failed)

    for _ in range(rounds):
        for front in fronts:
            front.end(signal.SIGKILL)
            front.start()
            go_on()
        coordinator = group.coordinator()
        coordinator.kill()
        go_on()
        coordinator.start()
    over.set()
    for thread in clients:
        thread.join()
    for front in fronts:
        assert front.end() == 0, front.told()
    assert failed == []
    for name, last in posted.items():
        assert rows(group, topic, f"{topic}-{name}") == [(number, f"{name}-{number}".encode()) for number in range(1, last + 1)]


def test_without_a_majority_posts_are_refused_with_retry_after(group: RunningGroup, tmp_path: Path) -> None:
    """Posts that do not wait stay in the spool in that time, and survive their process."""
    spooling = Front(tmp_path, group.url, name="spooling", top=f'spool = "{tmp_path}/spool"')
    with Front(tmp_path, group.url) as front, spooling:
        assert front.post_once("lost", "p", 1, ["a"]).status == 200
        later = spooling.post("lost", ["first"], "?wait=false").headers["location"]
        wait_until(lambda: spooling.get(later).json["state"] == "committed")
        for name in ("g2", "g3"):
            group[name].signal(signal.SIGSTOP)
        wait_until(lambda: front.get("/readyz").status == 503)
        refused = front.post_once("lost", "p", 2, ["b"])
        assert (refused.status, refused.headers["retry-after"], refused.json["committed"]) == (503, "1", "no")
        assert front.get("/healthz").status == 200
        spooled = spooling.post("lost", ["kept"], "?wait=false")
        assert (spooled.status, spooled.json["spooled"]) == (202, True)
        assert spooling.post("lost", ["not kept"]).status == 503
        spooling.end(signal.SIGKILL)
        for name in ("g2", "g3"):
            group[name].signal(signal.SIGCONT)
        wait_until(lambda: front.get("/readyz").status == 200)
        spooling.start()
        wait_until(lambda: b'"kept"' in front.get("/v1/records?topic=lost").body)
        wait_until(lambda: front.post_once("lost", "p", 2, ["b"]).status == 200)
        wait_until(lambda: rows(group, "lost", "p") == [(1, b"a"), (2, b"b")])  # the gateway that is read at may be behind
        late = front.post_once("lost", "p", 3, ["c"], "?wait=false")
        assert late.status == 202
        assert front.end() == 0
        wait_until(lambda: rows(group, "lost", "p")[-1] == (3, b"c"))  # what was taken is delivered before it ends
        assert spooling.end() == 0
        with Reader(group.url, topics=["lost"], start="earliest") as reader:
            assert [record.value for record in reader.records()].count(b"kept") == 1


def test_without_gateways_it_begins_with_a_spool_alone(tmp_path: Path) -> None:
    front = Front(tmp_path, "tutti://127.0.0.1:9", before="from tutti_connect.http import limits as l\nl.READ_S = 0.5").start(
        wait=False
    )
    assert front.end(0) == 3
    assert "127.0.0.1:9" in front.told()
    with Front(tmp_path, "tutti://127.0.0.1:9", top=f'spool = "{tmp_path}/spool"') as spooling:
        assert (spooling.get("/readyz").json["state"], spooling.post("later", ["a"]).status) == ("unavailable", 503)
        kept = spooling.post("later", ["a"], "?wait=false")
        assert (kept.status, kept.json["spooled"]) == (202, True)
        assert spooling.get(kept.headers["location"]).json["state"] == "pending"
