"""Tests of the status document: every field that readers rely on, and a bounded received-table."""

from __future__ import annotations

import pytest
from msgspec import json

from tutti import limits as common_limits
from tutti.data.frames.bodies import Voter
from tutti.data.lane_name import LaneName
from tutti.data.log_state import LogState, Producer, Topic
from tutti.log.files.options import FreeSpace
from tutti_gateway.config import parse_config
from tutti_gateway.core import limits
from tutti_gateway.core.view.group_status import Member
from tutti_gateway.log.upkeep.retention import BlockedSegments
from tutti_gateway.node.common.counters import DiskCounters, GatewayCounters
from tutti_gateway.node.disk.lane_thread import LaneFacts
from tutti_gateway.node.status.snapshot import (
    DiskSnapshot,
    DriverSnapshot,
    GatewayIdentity,
    GroupSnapshot,
    LanesSnapshot,
    Snapshot,
)
from tutti_gateway.node.status.status import StatusDocuments

CONFIG = """
name = "jfk"
data = "data/jfk"
listen = "127.0.0.1:7400"
advertise = "127.0.0.9:7500"
[ports]
reads = 9000
[group]
name = "ingest"
"""


class Stack:
    def __init__(self) -> None:
        self.lane_halted = ""
        self.lane_members: tuple[int, ...] = ()
        self.decided = LogState(
            next_offset=7,
            tick=3,
            tick_time=99,
            log=bytes(range(16)),
            topics={1: Topic("t")},
            producers={
                2: Producer("b", b"i" * 16, 4, 50, b"offset 9"),
                1: Producer("a", b"i" * 16, 1, 8, b"\xff\x00", closed=True, last_seen=5),
            },
        )


class Driver:
    def __init__(self) -> None:
        self.halted = self.suspected = ""
        self.peers: list[dict[str, object]] = []
        self.differing: dict[str, str] = {}

    def snapshot(self) -> DriverSnapshot:
        transport: dict[str, object] = {"kind": "mesh", "peers": self.peers, "differing": self.differing}
        quotas: dict[str, object] = {"waiting_bytes": 9, "throttled_us": {"feed": 5}}
        return DriverSnapshot(12, 7, self.halted, self.suspected, 3, 2, 100, GatewayCounters(), transport, quotas)


class Disk:
    def __init__(self) -> None:
        self.space = FreeSpace(1000, False, "")
        self.full = ""
        self.held: BlockedSegments | None = None

    def snapshot(self) -> DiskSnapshot:
        return DiskSnapshot(
            self.space, "", self.full, 4, self.held, {"lost": [3, 4], "mended_frames": 2}, DiskCounters(), {"syncs": 5}
        )


class Lanes:
    def __init__(self) -> None:
        self.facts: dict[LaneName, LaneFacts] = {}
        self.damaged: dict[LaneName, str] = {}
        self.full = ""


JFK = Member(1, "jfk", "127.0.0.1:7400", b"j" * 16, "primary", True, True, 1, 12, 0, 0, 0)
LGA = Member(2, "lga", "127.0.0.1:7410/7499", b"l" * 16, "silent", True, False, 0, 4, 8, 9_000_000, 500)


class Group:
    def __init__(self) -> None:
        self.reason, self.waits, self.majority = "", "", True
        self.view: tuple[int, tuple[int, ...], int] = 1 << 16 | 1, (1,), 1
        self.all = [JFK]

    def snapshot(self) -> GroupSnapshot:
        return GroupSnapshot("primary", self.reason, self.waits, self.view, self.all, {"requests": 3}, 0, self.majority)


class Bench:
    def __init__(self, more: str = "") -> None:
        config, mistakes = parse_config(CONFIG + more)
        assert config is not None, mistakes
        self.identity = GatewayIdentity.of(config, b"j" * 16, "1", 1)
        self.stack, self.driver, self.disk, self.group = Stack(), Driver(), Disk(), Group()
        self.lanes = Lanes()
        self.security: dict[str, object] = {}

    @property
    def documents(self) -> StatusDocuments:
        lanes, stack = self.lanes, self.stack
        snapshot = Snapshot(
            identity=self.identity,
            decided=stack.decided,
            driver=self.driver.snapshot(),
            group=self.group.snapshot(),
            disk=self.disk.snapshot(),
            lanes=LanesSnapshot(
                lanes.facts, {}, lanes.damaged, stack.lane_halted, stack.lane_members, "", lanes.full, 6, DiskCounters()
            ),
            lookups=5,
            reads=(77, 2),
            security=self.security,
            resident_bytes=2 << 20,
        )
        return StatusDocuments(snapshot)


def test_the_status_has_the_promised_fields() -> None:
    bench = Bench()
    status = json.decode(bench.documents.status())
    assert (status["gateway"], status["group"], status["state"]) == ("jfk", "ingest", "primary")
    assert status["log"] == bytes(range(16)).hex()
    assert status["view"] == {"id": 65537, "text": "1.1", "coordinator": "jfk", "members": ["jfk"]}
    assert (status["frontier"], status["start"], status["position"]) == (7, 0, 12)
    assert status["lag"] == {"jfk": 0}
    assert status["tick"] == {"number": 3, "time_us": 99}
    assert (status["url"], status["reads"], status["admin"]) == (
        "tutti://127.0.0.9:7500",
        "grpc://127.0.0.9:9000",
        "http://127.0.0.9:7403",
    )
    assert (status["sessions"], status["producers"], status["topics"], status["readers"]) == (3, 2, 1, 0)
    assert status["queues"] == {"disk": 4, "lanes": 6, "lookups": 5}
    assert status["transport"] == {"kind": "mesh", "peers": [], "differing": {}}
    assert status["undecided"] == {"frames": 2, "bytes": 100}
    assert status["repair"] == {"requests": 3}
    assert status["disk"]["free_bytes"] == 1000
    assert status["disk"]["inline"] == {"syncs": 5}
    assert status["disk"]["lanes"] == DiskCounters().to_dict()
    assert status["reads_process"] == {"pid": 77, "starts": 2}
    assert status["memory"]["resident_bytes"] > 1 << 20
    assert {"ingest", "committed", "unordered", "refused", "commit_us"} <= status.keys()


def test_a_gateway_with_tokens_reports_their_quotas() -> None:
    bench = Bench()
    assert json.decode(bench.documents.status())["security"] == {}
    bench.security = {"tokens": 1}
    quotas = {"waiting_bytes": 9, "throttled_us": {"feed": 5}}
    assert json.decode(bench.documents.status())["security"] == {"tokens": 1, "quotas": quotas}


def test_a_member_that_left_the_view_because_of_its_full_disk_names_the_disk_as_the_cause() -> None:
    bench = Bench()
    bench.disk.full = "the disk is full: free some space"
    bench.group.waits = "copies the log from the view that lga coordinates"
    assert bench.documents.waits == "the disk is full: free some space; copies the log from the view that lga coordinates"
    assert json.decode(bench.documents.status())["reason"] == "the disk is full: free some space"
    bench.disk.full = ""
    assert bench.documents.waits == "copies the log from the view that lga coordinates"


def test_a_problem_of_a_security_file_is_a_reason_of_the_row_and_blocks_no_records() -> None:
    bench = Bench()
    bench.security = {"trouble": "the certificate expired"}
    status = json.decode(bench.documents.status())
    assert (status["reason"], status["members"][0]["reason"]) == ("", "the certificate expired")


def test_a_reader_that_blocks_retention_is_reported() -> None:
    bench = Bench(more='[retention]\ntime = "1d"\nbytes = 400_000_000\nkeep_for = ["archive", "late"]\n')
    bench.stack.decided.readers["archive"] = 4
    bench.disk.held = BlockedSegments("late", 0, 1 << 20)
    assert json.decode(bench.documents.status())["retention"] == {
        "bytes": 400_000_000,
        "time_us": 86_400_000_000,
        "keep_for": {"archive": 4, "late": 0},
        "held_bytes": 1 << 20,
        "reason": bench.disk.held.message,
    }


def test_a_problem_is_reported_with_its_reason() -> None:
    bench = Bench()
    bench.disk.full = "no room"
    status = json.decode(bench.documents.status())
    assert (status["disk"]["low"], status["reason"]) == (True, "no room")
    bench.driver.suspected = "the disk does not answer"
    assert json.decode(bench.documents.status())["reason"] == "no room"
    bench.disk.full = ""
    bench.disk.space = FreeSpace(1000, True, "1000 bytes are free")
    status = json.decode(bench.documents.status())
    assert (status["disk"]["low"], status["reason"]) == (True, "1000 bytes are free")
    bench.disk.space = FreeSpace(10_000, False, "")
    assert json.decode(bench.documents.status())["reason"] == "the disk does not answer"
    bench.driver.halted = "the disk failed"
    status = json.decode(bench.documents.status())
    assert (status["state"], status["reason"]) == ("halted", "the disk failed")


def test_lanes_are_reported_and_the_own_one_to_clients_while_it_accepts_records() -> None:
    bench = Bench()
    assert bench.documents.welcome().lane == ""
    bench.stack.decided.roster = {3: Voter(3, "jfk", b"j" * 16, "127.0.0.1:7400")}
    own, other = LaneName(3, b"j" * 16), LaneName(1, b"l" * 16)
    assert bench.documents.welcome().lane == own.text
    bench.lanes.facts = {own: LaneFacts(5, 40), other: LaneFacts(7, 9)}
    status = json.decode(bench.documents.status())
    assert (status["lane"], [lane["origin"] for lane in status["lanes"]]) == (own.text, [1, 3])
    assert status["lanes"][1] == {
        "lane": own.text,
        "origin": 3,
        "incarnation": (b"j" * 16).hex(),
        "start": 0,
        "frontier": 40,
        "position": 5,
        "members": [],
        "halted": "",
        "damaged": "",
    }
    bench.stack.lane_members = (1,)
    assert [lane["members"] for lane in json.decode(bench.documents.status())["lanes"]] == [[], ["jfk"]]
    bench.lanes.damaged[own] = "position 6 cannot be read"
    assert [lane["damaged"] for lane in json.decode(bench.documents.status())["lanes"]] == ["", "position 6 cannot be read"]
    bench.lanes.facts[own] = LaneFacts(halted="it is damaged")
    assert bench.documents.welcome().lane == ""
    assert json.decode(bench.documents.status())["lanes"][1]["halted"] == "it is damaged"
    bench.lanes.facts[own], bench.stack.lane_halted = LaneFacts(5, 40), "others have more of it"
    assert bench.documents.welcome().lane == ""
    assert json.decode(bench.documents.status())["lanes"][1]["halted"] == "others have more of it"
    bench.lanes.full = "no room for a lane"
    assert json.decode(bench.documents.status())["reason"] == "no room for a lane"
    bench.stack.decided.roster = {3: Voter(3, "jfk", b"another disk----", "127.0.0.1:7400")}
    assert bench.documents.welcome().lane == ""


def test_before_any_view_there_is_none() -> None:
    bench = Bench()
    bench.group.view = 0, (), 0
    assert json.decode(bench.documents.status())["view"] == {"id": 0, "text": "0.0", "coordinator": "", "members": []}


def test_clients_and_operators_get_the_other_gateways() -> None:
    bench = Bench()
    bench.group.all = [JFK, LGA]
    bench.group.view = 5 << 16 | 1, (1, 2), 1
    welcome = bench.documents.welcome()
    assert welcome.gateways == {"jfk": "tutti://127.0.0.9:7500", "lga": "tutti://127.0.0.1:7410"}
    assert welcome.silent == ("lga",)
    status = json.decode(bench.documents.status())
    assert status["lag"] == {"jfk": 0, "lga": 8}
    assert status["view"] == {"id": 5 << 16 | 1, "text": "5.1", "coordinator": "jfk", "members": ["jfk", "lga"]}
    assert (status["gateways"], status["silent"]) == (welcome.gateways, ["lga"])
    assert json.decode(bench.documents.members())[1] == {
        "number": 2,
        "name": "lga",
        "address": "127.0.0.1:7410",
        "incarnation": (b"l" * 16).hex(),
        "state": "silent",
        "voter": True,
        "coordinator": False,
        "age": 0,
        "frontier": 4,
        "lag": 8,
        "heard_us": 9_000_000,
        "round_trip_us": 500,
        "reason": "",
    }


def test_a_removed_gateway_reports_it() -> None:
    bench = Bench()
    bench.group.reason = "this gateway was removed"
    assert json.decode(bench.documents.status())["reason"] == "this gateway was removed"


def test_the_cause_of_a_wait_is_reported_if_nothing_else_is_wrong() -> None:
    bench = Bench()
    bench.group.waits = "not heard of lga"
    assert json.decode(bench.documents.status())["reason"] == "not heard of lga"
    bench.driver.suspected = "the disk does not answer"
    assert json.decode(bench.documents.status())["reason"] == "the disk does not answer"


def test_the_welcome_has_all_addresses() -> None:
    welcome = Bench().documents.welcome()
    assert welcome.gateways == {"jfk": "tutti://127.0.0.9:7500"}
    assert welcome.window_bytes == common_limits.WINDOW_BYTES
    assert Bench("\n[limits]\nundecided_bytes = 5000000\n").documents.welcome().window_bytes == 5_000_000
    assert welcome.log == bytes(range(16)).hex()


def test_producers_come_by_name_and_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench()
    told = json.decode(bench.documents.producers())
    first, second = told["producers"]
    assert told["total"] == 2
    assert first == {
        "name": "a",
        "number": 1,
        "epoch": 1,
        "sequence": 8,
        "closed": True,
        "last_seen_us": 5,
        "progress_base64": "/wA=",
    }
    assert (second["name"], second["progress"]) == ("b", "offset 9")
    assert (bench.documents.epoch_of("b"), bench.documents.epoch_of("nobody")) == (4, 0)
    monkeypatch.setattr(limits, "PRODUCERS_AN_ANSWER_MAX", 1)
    assert len(json.decode(bench.documents.producers())["producers"]) == 1


def test_a_refused_handshake_is_reported_before_the_cause_of_a_wait() -> None:
    bench = Bench()
    bench.driver.peers = [{"name": "lga", "refused": ""}, {"name": "ewr", "refused": "two gateways are named 'jfk'"}]
    assert json.decode(bench.documents.status())["reason"] == ""
    bench.group.waits = "not heard of lga and ewr"
    assert json.decode(bench.documents.status())["reason"] == "ewr: two gateways are named 'jfk'; not heard of lga and ewr"
    bench.driver.peers = []
    assert json.decode(bench.documents.status())["reason"] == "not heard of lga and ewr"


def test_a_refused_gateway_without_a_log_gets_no_advice_to_found_a_group() -> None:
    """The group that does not know it has begun: it stood in the reason that it was to be founded, and how to be let in, twice."""
    bench = Bench()
    bench.stack.decided.log = b""
    bench.driver.peers = [
        {"name": "ewr", "refused": "jfk is not a member of group 'x': add it with `tutti members add jfk HOST:PORT`"}
    ]
    bench.group.waits = "the group is founded when ewr is running too: not heard of"
    told = json.decode(bench.documents.status())["reason"]
    assert bench.documents.waits == told, "the log of the gateway says the same"
    assert told == "ewr: jfk is not a member of group 'x': add it with `tutti members add jfk HOST:PORT`"


def test_the_members_name_the_refusal_too() -> None:
    """Only the status did, and the members said how the group is founded, or who is not heard of."""
    bench = Bench()
    bench.group.waits = "the group is founded when lga is running too: not heard of"
    bench.group.all = [JFK._replace(state="joining", reason=bench.group.waits), LGA]
    bench.driver.peers = [{"name": "lga", "refused": "its public key is not listed there"}]
    bench.stack.decided.log = b""
    jfk, lga = json.decode(bench.documents.members())
    assert jfk["reason"] == json.decode(bench.documents.status())["reason"] == "lga: its public key is not listed there"
    assert lga["reason"] == "its public key is not listed there"
    bench.group.all = [JFK, LGA._replace(state="primary")]
    bench.group.waits = ""
    assert [member["reason"] for member in json.decode(bench.documents.members())] == ["", ""]


def test_lanes_name_gateways_in_reports() -> None:
    bench = Bench()
    own = LaneName(1, b"j" * 16)
    bench.group.all = [JFK, LGA]
    bench.lanes.facts[own], bench.stack.lane_halted = LaneFacts(5, 40), "it waits for gateway 2, and gateway 9"
    (lane,) = json.decode(bench.documents.status())["lanes"]
    assert lane["halted"] == "it waits for gateway 'lga', and gateway 9"


def test_different_settings_of_others_are_reported_and_block_no_readiness() -> None:
    """The log of the gateway alone said in what they differ, and of timers nobody said anything."""
    bench = Bench()
    bench.group.all = [JFK, LGA._replace(state="primary"), LGA._replace(number=3, name="ewr", state="joining", reason="lacks all")]
    bench.driver.differing = {"lga": "the timers differ", "ewr": "the members differ"}
    told = [member["reason"] for member in json.decode(bench.documents.members())]
    assert told == ["", "the timers differ", "lacks all; the members differ"]
    assert json.decode(bench.documents.status())["reason"] == ""
    bench.group.waits = "ewr has others"
    assert json.decode(bench.documents.status())["reason"] == "ewr has others; the timers differ; the members differ"


def test_a_missing_majority_is_reported_before_the_members_that_block_decisions() -> None:
    bench = Bench()
    bench.driver.suspected, bench.group.waits = "lga blocks the group: the next view leaves it out", "2 of 3 voters are needed"
    assert json.decode(bench.documents.status())["reason"] == bench.driver.suspected
    bench.group.majority = False
    status = json.decode(bench.documents.status())
    assert (status["reason"], status["majority"]) == ("2 of 3 voters are needed", False)


def test_a_silent_member_has_the_reason_of_its_connection() -> None:
    bench = Bench()
    bench.group.all = [JFK, LGA]
    for peer, reason in (
        ({"refused": "other group", "failure": "down", "accepts": False}, "other group"),
        ({"refused": "", "failure": "127.0.0.1:7410 refuses connections", "accepts": False}, "127.0.0.1:7410 refuses connections"),
        ({"refused": "", "failure": "", "accepts": True}, "it accepts connections, but sends nothing"),
        ({"refused": "", "failure": "", "accepts": False}, ""),
    ):
        bench.driver.peers = [{"name": "lga", **peer}]
        (_, lga) = json.decode(bench.documents.members())
        assert lga["reason"].startswith(reason)
        assert bool(lga["reason"]) == bool(reason)
