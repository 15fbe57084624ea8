"""Status documents of a gateway: the welcome to clients, the status, the members and the producers (JSON, see NOTES.md)."""

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
from tutti.data.addresses import client_address
from tutti.data.client_protocol import PROTOCOL, Welcome
from tutti.data.lane_name import LaneName
from tutti.data.log_state import LogState, Producer
from tutti.data.view_id import view_text
from tutti.log.files.options import FreeSpace
from tutti_gateway.config import Address, Config
from tutti_gateway.core import limits
from tutti_gateway.core.view.group_status import SILENT, Member
from tutti_gateway.log.upkeep.retention import BlockedSegments
from tutti_gateway.node.common import memory
from tutti_gateway.node.common.counters import DiskCounters, GatewayCounters
from tutti_gateway.node.disk.lane_thread import NO_FACTS, LaneFacts


class StackFacts(Protocol):
    """The part of the stack that the status documents use."""

    @property
    def lane_halted(self) -> str:
        """Why no frame can follow in the own lane; empty while the lane works."""

    @property
    def lane_members(self) -> tuple[int, ...]:
        """The gateways that hold every record now acknowledged in the own lane."""

    @property
    def decided(self) -> LogState:
        """The state of the log up to the frontier; read-only."""


class DriverFacts(Protocol):
    """The part of the driver that the status documents use."""

    meters: GatewayCounters
    position: int
    offset: int
    halted: str

    @property
    def suspected(self) -> str:
        """The members that block decisions, each with the reason; empty if there are none."""

    @property
    def undecided_bytes(self) -> int:
        """The bytes of the undecided frames."""

    @property
    def undecided_frames(self) -> int:
        """The number of undecided frames."""

    @property
    def state(self) -> str:
        """The state of the gateway: `primary`, `minority`, `joining`, `leaving` or `halted`."""

    @property
    def clients(self) -> int:
        """The number of client sessions."""

    def transport_facts(self) -> dict[str, object]:
        """Return the transport's figures: messages sent, received and lost."""


class GroupFacts(Protocol):
    """The part of `tutti_gateway.core.view.group_status.GroupStatus` that the status documents use."""

    @property
    def state(self) -> str:
        """The state of the gateway: `primary`, `minority`, `joining`, `leaving` or `halted`."""

    @property
    def reason(self) -> str:
        """Why the gateway accepts no new records until the operator acts; empty if it accepts them."""

    @property
    def waits(self) -> str:
        """What the gateway waits for before it accepts new records; empty if it does not wait."""

    @property
    def view(self) -> tuple[int, tuple[int, ...], int]:
        """The installed view: id, members, coordinator."""

    @property
    def repair(self) -> dict[str, int]:
        """Counters of lost, late and invalid messages between gateways."""

    def members(self) -> list[Member]:
        """Return every gateway of the group."""


class DiskFacts(Protocol):
    """The part of the disk thread that the status documents use."""

    space: FreeSpace
    failed: str
    full: str
    meters: DiskCounters

    @property
    def depth(self) -> int:
        """The number of queued items."""

    @property
    def held(self) -> BlockedSegments | None:
        """The data that retention would trim but a named reader holds back, None if there is none."""

    def damage(self) -> dict[str, object]:
        """Return the scrubber's figures: the unreadable range and the repairs."""


class LanesFacts(Protocol):
    """The part of the lane thread that the status documents use."""

    facts: dict[LaneName, LaneFacts]
    failed: str
    full: str
    meters: DiskCounters

    @property
    def starts(self) -> dict[LaneName, int]:
        """The first available offset of each lane here."""

    @property
    def damaged(self) -> dict[LaneName, str]:
        """The lanes with unreadable data, and the remedy for each."""

    @property
    def depth(self) -> int:
        """The number of queued items."""


class ReadsFacts(Protocol):
    """The part of the supervisor of the reads process that the status documents use."""

    pid: int
    starts: int


class LookupFacts(Protocol):
    """The part of the duplicate lookup that the status documents use."""

    @property
    def waiting(self) -> int:
        """The number of duplicates that wait for their offset."""


class StatusDocuments:
    """Makes the status documents. Used by the socket thread; a status takes a tenth of a millisecond."""

    def __init__(
        self,
        config: Config,
        stack: StackFacts,
        driver: DriverFacts,
        disk: DiskFacts,
        lookups: LookupFacts,
        reads: ReadsFacts,
        group: GroupFacts,
        lanes: LanesFacts,
        incarnation: bytes,
        security: Callable[[], dict[str, object]] = dict,
        clock_ahead_us: Callable[[], int] = int,
    ) -> None:
        """Store the sources of the documents.

        Args:
            config: the gateway's configuration.
            stack, driver, disk, lookups, reads, group, lanes: the parts of the gateway that the documents describe.
            incarnation: id of this gateway's data directory.
            security: returns the figures about tokens.
            clock_ahead_us: returns how far the host clock is ahead of the group's clock, us.
        """
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
        """The state of the gateway: `primary`, `minority`, `joining`, `leaving` or `halted`."""
        return self._group.state

    @property
    def waits(self) -> str:
        """What the gateway waits for before it accepts new records; empty if it does not wait for other gateways."""
        return self._waits(self._driver.transport_facts())

    def welcome(self) -> Welcome:
        """Return the answer to Hello."""
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
        """Return the own lane once the roster has this gateway with this disk; empty while the lane cannot accept records."""
        for number, voter in self._stack.decided.roster.items():
            lane = LaneName(number, self._incarnation)
            if voter.incarnation == self._incarnation and not self._lane_halted(lane):
                return lane.text
        return ""

    def _lane_halted(self, lane: LaneName) -> str:
        own = self._stack.lane_halted if lane.incarnation == self._incarnation else ""
        return own or self._lanes.facts.get(lane, NO_FACTS).halted

    def _lane_facts(self, members: list[Member]) -> list[dict[str, object]]:
        """Return the status of every lane stored here, by number.

        `start` is the first available offset. `members` of the own lane are the gateways that hold every record acknowledged now.
        `frontier` and `position` of a halted lane may be unknown (null).
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
        """Return the client url of each gateway; for this gateway from its configuration, even if the log has another address."""
        found = {member.name: f"tutti://{client_address(member.address)}" for member in members if member.address}
        return found | {self._config.name: self._url}

    def members(self) -> bytes:
        """Return the gateways of the group as JSON, by number.

        The `reason` of this gateway is that of the status. The `reason` of a silent gateway is why messages do not reach it, if
        that is known. The `reason` of another gateway also names settings that differ from this gateway's.
        """
        return orjson.dumps(self._member_documents(self._group.members(), self._driver.transport_facts()))

    def _member_documents(self, members: list[Member], transport: dict[str, object]) -> list[dict[str, object]]:
        refused, differing, own = _refused(transport), _differing(transport), self._config.name
        found = []
        for member in members:
            known = self._reason(transport) if member.name == own else refused.get(member.name) if member.state == SILENT else ""
            reasons = known or member.reason, differing.get(member.name, "")
            found.append(_member_document(member._replace(reason="; ".join(filter(None, reasons)))))
        return found

    def status(self) -> bytes:
        """Return the status as JSON."""
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
                "members": self._member_documents(members, transport),
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
        """Return why this gateway accepts no new records, or an empty string."""
        driver = self._driver
        return driver.halted or self._no_space_reason() or self._group.reason or driver.suspected or self._waits(transport)

    def _no_space_reason(self) -> str:
        """Return why the disk accepts no new records, or an empty string."""
        disk = self._disk
        return disk.full or self._lanes.full or (disk.space.reason if disk.space.low else "")

    def _waits(self, transport: dict[str, object]) -> str:
        """Return what this gateway waits for, or an empty string.

        Peers that reject this gateway's messages come first, because no message reaches them. For a gateway without a log they
        are the whole answer, because only its peers know if the group exists. Differing settings come last, as a possible cause.
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
            "low": bool(self._no_space_reason()),
            "failed": disk.failed or self._lanes.failed,
            "damage": disk.damage(),
            **disk.meters.to_dict(),
            "lanes": self._lanes.meters.to_dict(),
        }

    def _retention_facts(self) -> dict[str, object]:
        """Return the readers of `keep_for` with their committed offsets (0: none), and the data that the slowest holds back."""
        held, readers = self._disk.held, self._stack.decided.readers
        return {
            "keep_for": {name: readers.get(name, 0) for name in self._config.retention.keep_for},
            "held_bytes": held.bytes if held is not None else 0,
            "reason": held.message if held is not None else "",
        }

    def producers(self) -> bytes:
        """Return the table of producers as JSON, by name; `total` counts the producers beyond the size of one answer too."""
        table = self._stack.decided.producers
        named = sorted((producer.name, number) for number, producer in table.items())[: limits.PRODUCERS_AN_ANSWER_MAX]
        lines = [_producer_document(number, table[number]) for _, number in named]
        return orjson.dumps({"total": len(table), "producers": lines})

    def epoch_of(self, name: str) -> int:
        """Return the current epoch of a producer, or 0 if the producer is unknown."""
        decided = self._stack.decided
        number = decided.producer_number(name)
        return decided.producers[number].epoch if number else 0


def _silent(members: list[Member]) -> tuple[str, ...]:
    return tuple(member.name for member in members if member.state == SILENT)


def _refused(transport: dict[str, object]) -> dict[str, str]:
    """Return why other gateways reject this gateway's messages, by their names."""
    peers = transport.get("peers")
    return {peer["name"]: peer["refused"] for peer in peers if peer["refused"]} if isinstance(peers, list) else {}


def _with_names(text: str, names: dict[int, str]) -> str:
    """Replace gateway numbers by names in a text of the lane layer, which knows only numbers."""
    return re.sub(r"\bgateway (\d+)\b", lambda found: _named(found, names), text)


def _named(found: re.Match[str], names: dict[int, str]) -> str:
    name = names.get(int(found[1]))
    return f"gateway {name!r}" if name else found[0]


def _differing(transport: dict[str, object]) -> dict[str, str]:
    """Return the settings of other gateways that differ from this gateway's, by their names."""
    found = transport.get("differing")
    return found if isinstance(found, dict) else {}


def _member_document(member: Member) -> dict[str, object]:
    return {**member._asdict(), "incarnation": member.incarnation.hex(), "address": client_address(member.address)}


def _producer_document(number: int, producer: Producer) -> dict[str, object]:
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
    """Return the version of this software."""
    try:
        return version("tutti-ingest")
    except PackageNotFoundError:
        return "unknown"
