"""What a gateway tells of itself: the welcome to clients, its status, and the received-table. JSON shapes are in NOTES.md."""

from __future__ import annotations

import base64
import os
import re
import time
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Protocol

import orjson

from tutti import limits as common_limits
from tutti.data.addresses import client_part
from tutti.data.client_protocol import PROTOCOL, Welcome
from tutti.data.lane_name import LaneName
from tutti.data.log_state import LogState, Producer
from tutti.data.view_id import view_text
from tutti.log.files.options import Space
from tutti_gateway.config import Address, Config
from tutti_gateway.core import limits
from tutti_gateway.core.view.group_status import SILENT, Member
from tutti_gateway.log.upkeep.retention import Held
from tutti_gateway.node.common import memory
from tutti_gateway.node.common.counters import DiskMeters, Meters
from tutti_gateway.node.disk.lane_thread import NO_FACTS, LaneFacts


class Decided(Protocol):
    """What is needed of the stack."""

    @property
    def lane_halted(self) -> str:
        """Why nothing can follow in the own lane; empty while all is well."""

    @property
    def lane_members(self) -> tuple[int, ...]:
        """Whose disks have what is acknowledged in the own lane now."""

    @property
    def decided(self) -> LogState:
        """The log up to the frontier; not to be changed."""


class Standing(Protocol):
    """What is needed of the driver."""

    meters: Meters
    position: int
    offset: int
    halted: str

    @property
    def suspected(self) -> str:
        """Who holds the group up, and why; empty when nobody does."""

    @property
    def undecided_bytes(self) -> int:
        """Bytes of the frames that were handed to the disk and are not decided."""

    @property
    def undecided_frames(self) -> int:
        """How many they are."""

    @property
    def state(self) -> str:
        """`primary`, `minority`, `joining`, `leaving` or `halted`."""

    @property
    def clients(self) -> int:
        """How many have said Hello."""

    def transport_facts(self) -> dict[str, object]:
        """What was sent to other gateways, received of them and lost."""


class GroupFacts(Protocol):
    """What is needed of `tutti_gateway.core.view.group_status.Survey`."""

    @property
    def state(self) -> str:
        """`primary`, `minority`, `joining`, `leaving` or `halted`."""

    @property
    def reason(self) -> str:
        """Why it takes nothing new where the operator has to act."""

    @property
    def waits(self) -> str:
        """What it waits for before it takes anything new."""

    @property
    def view(self) -> tuple[int, tuple[int, ...], int]:
        """The installed view: id, members, coordinator."""

    @property
    def repair(self) -> dict[str, int]:
        """What was counted of lost, late and wrong messages between gateways."""

    def members(self) -> list[Member]:
        """Every gateway of the group."""


class DiskFacts(Protocol):
    """What is needed of the disk thread."""

    space: Space
    failed: str
    full: str
    meters: DiskMeters

    @property
    def depth(self) -> int:
        """How much waits for it."""

    @property
    def held(self) -> Held | None:
        """What retention would let go and a named reader holds back."""

    def damage(self) -> dict[str, object]:
        """What of the log cannot be read, and what was mended."""


class LanesFacts(Protocol):
    """What is needed of the lanes' thread."""

    facts: dict[LaneName, LaneFacts]
    failed: str
    full: str
    meters: DiskMeters

    @property
    def starts(self) -> dict[LaneName, int]:
        """The first offset that each lane still has here."""

    @property
    def damaged(self) -> dict[LaneName, str]:
        """Lanes of which something cannot be read here, and what to do."""

    @property
    def depth(self) -> int:
        """How much waits for it."""


class ReadsFacts(Protocol):
    """What is needed of the supervisor of the reads process."""

    pid: int
    starts: int


class LookupFacts(Protocol):
    """What is needed of the lookups."""

    @property
    def waiting(self) -> int:
        """How many duplicates wait."""


class Books:
    """Answers questions. Used by the socket thread; a status costs it a tenth of a millisecond."""

    def __init__(
        self,
        config: Config,
        stack: Decided,
        driver: Standing,
        disk: DiskFacts,
        lookups: LookupFacts,
        reads: ReadsFacts,
        group: GroupFacts,
        lanes: LanesFacts,
        incarnation: bytes,
        security: Callable[[], dict[str, object]] = dict,
        clock_ahead_us: Callable[[], int] = int,
    ) -> None:
        """Keep what is asked; `incarnation` is that of this gateway's disk, `security` tells of tokens."""
        self._security, self._clock_ahead_us = security, clock_ahead_us
        self._config = config
        self._stack = stack
        self._driver = driver
        self._disk = disk
        self._lookups = lookups
        self._reads = reads
        self._group = group
        self._lanes = lanes
        self._incarnation = incarnation
        self._started_us = time.time_ns() // 1000
        self._version = release()
        host = config.advertised_address.host
        self._url = f"tutti://{config.advertised_address}"
        grpc, http = ("grpc+tls", "https") if config.security.has_tls else ("grpc", "http")
        self._reads_url = f"{grpc}://{Address(host, config.reads_address.port)}"
        self._admin_url = f"{http}://{Address(host, config.admin_address.port)}"

    @property
    def gateway(self) -> str:
        """This gateway's name."""
        return self._config.name

    @property
    def state(self) -> str:
        """`primary`, `minority`, `joining`, `leaving` or `halted`."""
        return self._group.state

    @property
    def waits(self) -> str:
        """What it waits for where it takes nothing new and others have to act or to come, empty otherwise."""
        return self._waits(self._driver.transport_facts())

    def welcome(self) -> Welcome:
        """The answer to Hello."""
        config, members = self._config, self._group.members()
        return Welcome(
            protocol=PROTOCOL,
            gateway=config.name,
            group=config.group.name,
            log=self._stack.decided.log.hex(),
            state=self._driver.state,
            version=self._version,
            reads=self._reads_url,
            admin=self._admin_url,
            gateways=self._gateways(members),
            window_bytes=min(common_limits.WINDOW_BYTES, config.limits.undecided_bytes),
            frame_bytes_max=common_limits.BODY_BYTES_MAX,
            raw_bytes_max=common_limits.RAW_BYTES_MAX,
            silent=_silent(members),
            lane=self._lane(),
        )

    def _lane(self) -> str:
        """The own lane, once the log says which number this gateway has with this disk; empty while it can take nothing."""
        for number, voter in self._stack.decided.roster.items():
            lane = LaneName(number, self._incarnation)
            if voter.incarnation == self._incarnation and not self._lane_halted(lane):
                return lane.text
        return ""

    def _lane_halted(self, lane: LaneName) -> str:
        own = self._stack.lane_halted if lane.incarnation == self._incarnation else ""
        return own or self._lanes.facts.get(lane, NO_FACTS).halted

    def _lane_facts(self, members: list[Member]) -> list[dict[str, object]]:
        """Every lane that is kept here, by number; `start` is the first offset that retention has left. Who takes part in the own
        one, so whose disks have what is acknowledged there now, is `members`. How far a halted one is may be unknown (null).
        """
        names, own = {member.number: member.name for member in members}, self._lane()
        return [
            {
                "lane": lane.text,
                "origin": lane.origin,
                "incarnation": lane.incarnation.hex(),
                "start": self._lanes.starts.get(lane, 0),
                "frontier": facts.offset,
                "position": facts.position,
                "members": [names.get(number, "") for number in self._stack.lane_members] if lane.text == own else [],
                "halted": _with_names(self._lane_halted(lane), names),
                "damaged": self._lanes.damaged.get(lane, ""),
            }
            for lane, facts in sorted(self._lanes.facts.items())
        ]

    def _gateways(self, members: list[Member]) -> dict[str, str]:
        """Where clients find each; this one as it says itself, also when its log has it elsewhere."""
        found = {member.name: f"tutti://{client_part(member.address)}" for member in members if member.address}
        return found | {self._config.name: self._url}

    def members(self) -> bytes:
        """The gateways of the group as JSON, by number. The own one tells what the status tells, and of one that is silent stands
        there why nothing gets to it, where that is known; of any other also what it is configured with otherwise.
        """
        return orjson.dumps(self._told(self._group.members(), self._driver.transport_facts()))

    def _told(self, members: list[Member], transport: dict[str, object]) -> list[dict[str, object]]:
        refused, differing, own = _refused(transport), _differing(transport), self._config.name
        found = []
        for member in members:
            known = self._reason(transport) if member.name == own else refused.get(member.name) if member.state == SILENT else ""
            reasons = known or member.reason, differing.get(member.name, "")
            found.append(_member(member._replace(reason="; ".join(filter(None, reasons)))))
        return found

    def status(self) -> bytes:
        """Status as JSON."""
        config, driver, decided, members = self._config, self._driver, self._stack.decided, self._group.members()
        transport = driver.transport_facts()
        return orjson.dumps(
            {
                "gateway": config.name,
                "pid": os.getpid(),
                "group": config.group.name,
                "log": decided.log.hex(),
                "state": driver.state,
                "reason": self._reason(transport),
                "view": self._view(members),
                "members": self._told(members, transport),
                "frontier": driver.offset,
                "start": decided.start_offset,
                "lag": {member.name: member.lag for member in members} or {config.name: 0},
                "position": driver.position,
                "tick": {"number": decided.tick, "time_us": decided.tick_time},
                "clock": {"ahead_us": self._clock_ahead_us()},
                "version": self._version,
                "url": self._url,
                "gateways": self._gateways(members),
                "silent": _silent(members),
                "reads": self._reads_url,
                "admin": self._admin_url,
                "data": str(Path(config.data).absolute()),
                "started_us": self._started_us,
                "sessions": driver.clients,
                "producers": len(decided.producers),
                "topics": len(decided.topics),
                "readers": len(decided.readers),
                "undecided": {"frames": driver.undecided_frames, "bytes": driver.undecided_bytes},
                "queues": {"disk": self._disk.depth, "lanes": self._lanes.depth, "lookups": self._lookups.waiting},
                "disk": self._disk_facts(),
                "retention": self._retention_facts(),
                "lane": self._lane(),
                "lanes": self._lane_facts(members),
                "transport": transport,
                "repair": self._group.repair,
                "memory": {"resident_bytes": memory.resident_bytes()},
                "security": self._security(),
                "reads_process": {"pid": self._reads.pid, "starts": self._reads.starts},
                **driver.meters.to_dict(),
            }
        )

    def _reason(self, transport: dict[str, object]) -> str:
        """Why this gateway takes nothing new; empty if it does."""
        driver = self._driver
        return driver.halted or self._no_room() or self._group.reason or driver.suspected or self._waits(transport)

    def _no_room(self) -> str:
        """Why the disk takes no new records; empty if it does."""
        disk = self._disk
        return disk.full or self._lanes.full or (disk.space.reason if disk.space.low else "")

    def _waits(self, transport: dict[str, object]) -> str:
        """What this gateway waits for; who does not take what it says comes first, as nobody hears of it then. Without a log that
        is all that is known: whether a group is still to be founded, or has begun without it, is what they do not tell it. Who is
        configured otherwise comes last: it may be why, and may be not.
        """
        waits = self._group.waits
        if not waits:
            return waits
        refused = [f"{name}: {why}" for name, why in _refused(transport).items()]
        return "; ".join(refused if refused and not self._stack.decided.log else [*refused, waits, *_differing(transport).values()])

    def _view(self, members: list[Member]) -> dict[str, object]:
        view, inside, coordinator = self._group.view
        names = {member.number: member.name for member in members}
        return {
            "id": view,
            "text": view_text(view),
            "coordinator": names.get(coordinator, ""),
            "members": [names.get(number, "") for number in inside],
        }

    def _disk_facts(self) -> dict[str, object]:
        disk = self._disk
        return {
            "free_bytes": disk.space.free_bytes,
            "low": bool(self._no_room()),
            "failed": disk.failed or self._lanes.failed,
            "damage": disk.damage(),
            **disk.meters.to_dict(),
            "lanes": self._lanes.meters.to_dict(),
        }

    def _retention_facts(self) -> dict[str, object]:
        """For whom retention waits, with the offset that each has committed (0: none), and what the slowest of them holds back."""
        held, readers = self._disk.held, self._stack.decided.readers
        return {
            "keep_for": {name: readers.get(name, 0) for name in self._config.retention.keep_for},
            "held_bytes": held.bytes if held is not None else 0,
            "reason": held.told if held is not None else "",
        }

    def producers(self) -> bytes:
        """The received-table as JSON, by name; cut where an answer ends (`total` tells)."""
        table = self._stack.decided.producers
        named = sorted((producer.name, number) for number, producer in table.items())[: limits.PRODUCERS_AN_ANSWER_MAX]
        lines = [_line(number, table[number]) for _, number in named]
        return orjson.dumps({"total": len(table), "producers": lines})

    def epoch_of(self, name: str) -> int:
        """The current epoch of a producer, 0 if it is not known."""
        decided = self._stack.decided
        number = decided.producer_number(name)
        return decided.producers[number].epoch if number else 0


def _silent(members: list[Member]) -> tuple[str, ...]:
    return tuple(member.name for member in members if member.state == SILENT)


def _refused(transport: dict[str, object]) -> dict[str, str]:
    """Why nothing of this gateway gets to others, by their names."""
    peers = transport.get("peers")
    return {peer["name"]: peer["refused"] for peer in peers if peer["refused"]} if isinstance(peers, list) else {}


def _with_names(text: str, names: dict[int, str]) -> str:
    """A text of the lanes, who know gateways by their numbers, for people, who know them by their names."""
    return re.sub(r"\bgateway (\d+)\b", lambda found: _named(found, names), text)


def _named(found: re.Match[str], names: dict[int, str]) -> str:
    name = names.get(int(found[1]))
    return f"gateway {name!r}" if name else found[0]


def _differing(transport: dict[str, object]) -> dict[str, str]:
    """What others are configured with otherwise than this gateway, by their names."""
    found = transport.get("differing")
    return found if isinstance(found, dict) else {}


def _member(member: Member) -> dict[str, object]:
    return {**member._asdict(), "incarnation": member.incarnation.hex(), "address": client_part(member.address)}


def _line(number: int, producer: Producer) -> dict[str, object]:
    line: dict[str, object] = {
        "name": producer.name,
        "number": number,
        "epoch": producer.epoch,
        "sequence": producer.sequence,
        "closed": producer.closed,
        "last_seen_us": producer.last_seen,
    }
    try:
        line["progress"] = producer.progress.decode()
    except UnicodeDecodeError:
        line["progress_base64"] = base64.b64encode(producer.progress).decode()
    return line


def release() -> str:
    """The version of this software."""
    try:
        return version("tutti-ingest")
    except PackageNotFoundError:
        return "unknown"
