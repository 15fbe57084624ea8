"""Snapshot of a gateway: the values for all status documents, which the socket thread reads in one iteration."""

from __future__ import annotations

from typing import NamedTuple

from tutti.data.lane_name import LaneName
from tutti.data.log_state import LogState
from tutti.log.files.options import FreeSpace
from tutti_gateway.config import Address, Config
from tutti_gateway.core.view.group_status import GroupStatus, Member
from tutti_gateway.log.upkeep.retention import BlockedSegments
from tutti_gateway.node.common.counters import DiskCounters, GatewayCounters
from tutti_gateway.node.disk.lane_thread import LaneFacts, LaneThread
from tutti_gateway.node.disk.log_thread import LogThread


class GatewayIdentity(NamedTuple):
    """Values of a gateway that do not change while it runs.

    Attributes:
        config: the configuration.
        incarnation: id of the data directory.
        version: version of the software.
        started_us: start of the process, us since 1970, UTC.
        url, reads, admin: addresses for clients, reads (Flight) and the admin port.
    """

    config: Config
    incarnation: bytes
    version: str
    started_us: int
    url: str
    reads: str
    admin: str

    @classmethod
    def of(cls, config: Config, incarnation: bytes, version: str, started_us: int) -> GatewayIdentity:
        """Return the identity of the gateway with this configuration."""
        host = config.advertised_address.host
        grpc, http = ("grpc+tls", "https") if config.security.has_tls else ("grpc", "http")
        return cls(
            config,
            incarnation,
            version,
            started_us,
            f"tutti://{config.advertised_address}",
            f"{grpc}://{Address(host, config.reads_address.port)}",
            f"{http}://{Address(host, config.admin_address.port)}",
        )


class DriverSnapshot(NamedTuple):
    """State of the driver.

    Attributes:
        position, offset: last decided position and next offset.
        halted: reason why the gateway has halted; empty if it has not.
        suspected: the members that block decisions, each with the reason; empty if there are none.
        sessions: number of client sessions.
        undecided_frames, undecided_bytes: frames that are not decided, and their size.
        counters: counters of the socket thread.
        transport: counters of the transport.
        quotas: values about batches that wait for the quota of a token.
    """

    position: int
    offset: int
    halted: str
    suspected: str
    sessions: int
    undecided_frames: int
    undecided_bytes: int
    counters: GatewayCounters
    transport: dict[str, object]
    quotas: dict[str, object]


class GroupSnapshot(NamedTuple):
    """State of the group as the stack sees it. The fields are those of `GroupStatus`."""

    state: str
    reason: str
    waits: str
    view: tuple[int, tuple[int, ...], int]
    members: list[Member]
    repair: dict[str, int]
    clock_ahead_us: int
    majority: bool

    @classmethod
    def of(cls, group: GroupStatus) -> GroupSnapshot:
        """Return the present state."""
        members, majority = group.members(), group.majority
        return cls(group.state, group.reason, group.waits, group.view, members, group.repair, group.clock_ahead_us, majority)


class DiskSnapshot(NamedTuple):
    """State of the disk thread.

    Attributes:
        space: free disk space.
        failed: reason why the thread writes nothing more.
        full: reason why nothing can be written now.
        depth: number of queued items.
        pinned: data that retention would trim if a named reader did not block it; None if there is none.
        scrub: state of the scrubber.
        counters: counters of writes and syncs.
        inline: counters of inline syncs.
    """

    space: FreeSpace
    failed: str
    full: str
    depth: int
    pinned: BlockedSegments | None
    scrub: dict[str, object]
    counters: DiskCounters
    inline: dict[str, object]

    @classmethod
    def of(cls, disk: LogThread) -> DiskSnapshot:
        """Return the present state."""
        # The disk thread replaces `space` and the reasons as whole objects, so the socket thread reads them without a lock.
        return cls(
            disk.space, disk.failed, disk.full, disk.depth, disk.pinned, disk.scrub_status(), disk.counters, disk.inline.to_dict()
        )


class LanesSnapshot(NamedTuple):
    """State of the lane thread.

    Attributes:
        facts: frontier of each lane.
        starts: first available offset of each lane.
        damaged: the lanes with unreadable data, and the remedy for each.
        halted: reason why this gateway's lane accepts no further frames; empty if it does.
        members: gateways that hold every record that is currently acknowledged in this gateway's lane.
        failed, full, depth, counters: as in `DiskSnapshot`.
    """

    facts: dict[LaneName, LaneFacts]
    starts: dict[LaneName, int]
    damaged: dict[LaneName, str]
    halted: str
    members: tuple[int, ...]
    failed: str
    full: str
    depth: int
    counters: DiskCounters

    @classmethod
    def of(cls, lanes: LaneThread, halted: str, members: tuple[int, ...]) -> LanesSnapshot:
        """Return the present state."""
        return cls(lanes.facts, lanes.starts, lanes.damaged, halted, members, lanes.failed, lanes.full, lanes.depth, lanes.counters)


class Snapshot(NamedTuple):
    """State of the whole gateway.

    Attributes:
        identity: the values that do not change.
        decided: state of the log up to the frontier; read-only.
        driver, group, disk, lanes: state of the parts.
        lookups: number of duplicates that wait for their offset.
        reads: pid of the reads process, and how often it was started.
        security: values about tokens, and the problems of tokens, keys and the certificate.
        resident_bytes: resident memory of the process.
    """

    identity: GatewayIdentity
    decided: LogState
    driver: DriverSnapshot
    group: GroupSnapshot
    disk: DiskSnapshot
    lanes: LanesSnapshot
    lookups: int
    reads: tuple[int, int]
    security: dict[str, object]
    resident_bytes: int
