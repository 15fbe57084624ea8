"""Status documents of a gateway: the welcome to clients, the status, the members and the producers (JSON, see NOTES.md)."""

from __future__ import annotations

import base64
import os
import re
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import orjson

from tutti import limits as common_limits
from tutti.data.client_protocol import PROTOCOL, Welcome
from tutti.data.lane_name import LaneName
from tutti.data.log_state import Producer
from tutti.data.member_address import client_address
from tutti.data.view_id import view_text
from tutti_gateway.core import limits
from tutti_gateway.core.view.group_status import HALTED, SILENT, Member
from tutti_gateway.node.disk.lane_thread import NO_FACTS
from tutti_gateway.node.status.snapshot import Snapshot

#: Reason for a silent gateway that accepts connections.
_IDLE = "it accepts connections, but sends nothing: its process may be stopped, or its machine overloaded"


class StatusDocuments:
    """The status documents, as functions of a snapshot. Creating a status takes a tenth of a millisecond."""

    def __init__(self, snapshot: Snapshot) -> None:
        """Describe a snapshot."""
        self._snapshot = snapshot
        self._identity, self._decided = snapshot.identity, snapshot.decided
        self._driver, self._group = snapshot.driver, snapshot.group
        self._disk, self._lanes = snapshot.disk, snapshot.lanes

    @property
    def gateway(self) -> str:
        """This gateway's name."""
        return self._identity.config.name

    @property
    def state(self) -> str:
        """The state of the gateway: `primary`, `minority`, `joining`, `leaving` or `halted`."""
        return HALTED if self._driver.halted else self._group.state

    def welcome(self) -> Welcome:
        """Return the answer to Hello."""
        identity, members = self._identity, self._group.members
        config = identity.config
        return Welcome(
            protocol=PROTOCOL,
            gateway=config.name,
            group=config.group.name,
            log=self._decided.log.hex(),
            state=self.state,
            version=identity.version,
            reads=identity.reads,
            admin=identity.admin,
            gateways=self._gateways(members),
            # One client's window must not exceed the limit above which the gateway stops reading from all clients.
            window_bytes=min(common_limits.WINDOW_BYTES, config.limits.undecided_bytes),
            frame_bytes_max=common_limits.BODY_BYTES_MAX,
            raw_bytes_max=common_limits.RAW_BYTES_MAX,
            silent=_silent(members),
            lane=self._lane(),
        )

    def _lane(self) -> str:
        """Return the name of this gateway's lane, empty while the lane accepts no records."""
        incarnation = self._identity.incarnation
        for number, voter in self._decided.roster.items():
            lane = LaneName(number, incarnation)
            # The lane accepts records only while this disk is in the roster, because the votes of any other disk do not count.
            if voter.incarnation == incarnation and not self._lane_halted(lane):
                return lane.text
        return ""

    def _lane_halted(self, lane: LaneName) -> str:
        own = self._lanes.halted if lane.incarnation == self._identity.incarnation else ""
        return own or self._lanes.facts.get(lane, NO_FACTS).halted

    def _lane_facts(self, members: list[Member]) -> list[dict[str, object]]:
        """Return the status of every lane stored here, by number.

        `start` is the first available offset. For this gateway's lane, `members` lists the gateways that hold every acknowledged
        record. For a halted lane, `frontier` and `position` may be unknown (null).
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
                "members": [names.get(number, "") for number in self._lanes.members] if lane.text == own else [],
                "halted": _with_names(self._lane_halted(lane), names),
                "damaged": self._lanes.damaged.get(lane, ""),
            }
            for lane, facts in sorted(self._lanes.facts.items())
        ]

    def _gateways(self, members: list[Member]) -> dict[str, str]:
        """Return the client URL of each gateway.

        The URL of this gateway comes from its configuration, even if the log has a different address.
        """
        found = {member.name: f"tutti://{client_address(member.address)}" for member in members if member.address}
        return found | {self.gateway: self._identity.url}

    def members(self) -> bytes:
        """Return the gateways of the group as JSON, by number.

        For this gateway, `reason` is the reason of the status, followed by the problems of security files. For a silent gateway,
        `reason` says why messages do not reach it, if that is known. For another gateway, `reason` also lists settings that differ
        from this gateway's settings.
        """
        return orjson.dumps(self._member_documents())

    def _member_documents(self) -> list[dict[str, object]]:
        transport = self._driver.transport
        unreachable, differing = _unreachable(transport), _differing(transport)
        found = []
        for member in self._group.members:
            if member.name == self.gateway:
                # A problem of a security file blocks no records, so it is a reason of this gateway's row, but not of its status.
                known = "; ".join(filter(None, [self._reason(), str(self._snapshot.security.get("trouble", ""))]))
            else:
                # A gateway that rejects this gateway's messages may seem silent, so the rejection is the better reason.
                known = unreachable.get(member.name, "") if member.state == SILENT else ""
            reasons = known or member.reason, differing.get(member.name, "")
            found.append(_member_document(member._replace(reason="; ".join(filter(None, reasons)))))
        return found

    def status(self) -> bytes:
        """Return the status as JSON."""
        snapshot, identity, driver, decided = self._snapshot, self._identity, self._driver, self._decided
        config, members = identity.config, self._group.members
        pid, starts = snapshot.reads
        return orjson.dumps(
            {
                "gateway": config.name,
                "pid": os.getpid(),
                "group": config.group.name,
                "log": decided.log.hex(),
                "state": self.state,
                "reason": self._reason(),
                "majority": self._group.majority,
                "view": self._view(members),
                "members": self._member_documents(),
                "frontier": driver.offset,
                "start": decided.start_offset,
                # A gateway without a number knows no members, so it reports only its own lag of 0.
                "lag": {member.name: member.lag for member in members} or {config.name: 0},
                "position": driver.position,
                "tick": {"number": decided.tick, "time_us": decided.tick_time},
                "clock": {"ahead_us": self._group.clock_ahead_us},
                "version": identity.version,
                "url": identity.url,
                "gateways": self._gateways(members),
                "silent": _silent(members),
                "reads": identity.reads,
                "admin": identity.admin,
                "data": str(Path(config.data).absolute()),
                "started_us": identity.started_us,
                "sessions": driver.sessions,
                "producers": len(decided.producers),
                "topics": len(decided.topics),
                "readers": len(decided.readers),
                "undecided": {"frames": driver.undecided_frames, "bytes": driver.undecided_bytes},
                "queues": {"disk": self._disk.depth, "lanes": self._lanes.depth, "lookups": snapshot.lookups},
                "disk": self._disk_facts(),
                "retention": self._retention_facts(),
                "lane": self._lane(),
                "lanes": self._lane_facts(members),
                "transport": driver.transport,
                "repair": self._group.repair,
                "memory": {"resident_bytes": snapshot.resident_bytes},
                "security": snapshot.security and {**snapshot.security, "quotas": driver.quotas},
                "reads_process": {"pid": pid, "starts": starts},
                **driver.counters.to_dict(),
            }
        )

    def _reason(self) -> str:
        """Return the reason why this gateway accepts no new records; empty if it accepts them."""
        driver, group = self._driver, self._group
        # Without a majority, no view can exclude the members that block decisions, so the missing majority is the better reason.
        blocked = driver.suspected or self.waits if group.majority else self.waits or driver.suspected
        return driver.halted or self._no_space_reason() or group.reason or blocked

    def _no_space_reason(self) -> str:
        """Return the reason why the disk accepts no new records; empty if it accepts them."""
        disk = self._disk
        return disk.full or self._lanes.full or (disk.space.reason if disk.space.low else "")

    @property
    def waits(self) -> str:
        """The gateways for which this gateway waits before it accepts records, as text; empty if it waits for none.

        Peers that reject this gateway's messages come first, because no message reaches them. If this gateway has no log,
        the text has only these peers, because only they know whether the group exists. Settings that differ between gateways come
        last, as a possible cause.
        """
        waits, transport = self._group.waits, self._driver.transport
        if not waits:
            return waits
        refused = [f"{name}: {why}" for name, why in _refused(transport).items()]
        # A full disk may be the cause of the other reasons: a member that cannot write leaves the view, and must catch up.
        causes = list(filter(None, [self._no_space_reason(), *refused]))
        return "; ".join(causes if refused and not self._decided.log else [*causes, waits, *_differing(transport).values()])

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
            # Both disk threads write to the same disk, so a failure of either thread is a failure of the disk.
            "failed": disk.failed or self._lanes.failed,
            "damage": disk.scrub,
            **disk.counters.to_dict(),
            "inline": disk.inline,
            "lanes": self._lanes.counters.to_dict(),
        }

    def _retention_facts(self) -> dict[str, object]:
        """Return the limits (0: none), the readers of `keep_for` with their committed offsets (0 if a reader has committed none),
        and the data that retention keeps for the slowest of these readers.
        """
        pinned, readers, limits_set = self._disk.pinned, self._decided.readers, self._identity.config.retention
        return {
            "bytes": limits_set.bytes,
            "time_us": limits_set.time_us,
            "keep_for": {name: readers.get(name, 0) for name in limits_set.keep_for},
            "held_bytes": pinned.bytes if pinned is not None else 0,
            "reason": pinned.message if pinned is not None else "",
        }

    def producers(self) -> bytes:
        """Return the table of producers as JSON, by name. `total` also counts the producers that do not fit into one answer."""
        table = self._decided.producers
        named = sorted((producer.name, number) for number, producer in table.items())[: limits.PRODUCERS_AN_ANSWER_MAX]
        lines = [_producer_document(number, table[number]) for _, number in named]
        return orjson.dumps({"total": len(table), "producers": lines})

    def epoch_of(self, name: str) -> int:
        """Return the current epoch of a producer; 0 if the producer is unknown."""
        decided = self._decided
        number = decided.producer_number(name)
        return decided.producers[number].epoch if number else 0


def _silent(members: list[Member]) -> tuple[str, ...]:
    return tuple(member.name for member in members if member.state == SILENT)


def _refused(transport: dict[str, object]) -> dict[str, str]:
    """Return the reasons why other gateways reject this gateway's messages, by gateway name."""
    peers = transport.get("peers")
    return {peer["name"]: peer["refused"] for peer in peers if peer["refused"]} if isinstance(peers, list) else {}


def _unreachable(transport: dict[str, object]) -> dict[str, str]:
    """Return the reasons why gateways may be silent, by gateway name: a rejection, a failed connection, or no data."""
    peers = transport.get("peers")
    if not isinstance(peers, list):
        return {}
    return {peer["name"]: peer["refused"] or (_IDLE if peer.get("accepts") else peer.get("failure", "")) for peer in peers}


def _with_names(text: str, names: dict[int, str]) -> str:
    """Replace gateway numbers by names in a text of the lane layer, which knows only numbers."""
    return re.sub(r"\bgateway (\d+)\b", lambda found: _named(found, names), text)


def _named(found: re.Match[str], names: dict[int, str]) -> str:
    name = names.get(int(found[1]))
    return f"gateway {name!r}" if name else found[0]


def _differing(transport: dict[str, object]) -> dict[str, str]:
    """Return the settings of other gateways that differ from this gateway's settings, by gateway name."""
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
        # Progress is opaque bytes (order, O1), but JSON has only text.
        line["progress"] = producer.progress.decode()
    except UnicodeDecodeError:
        line["progress_base64"] = base64.b64encode(producer.progress).decode()
    return line


def release() -> str:
    """Return the version of this software."""
    try:
        return version("tutti-ingest")
    # A source tree that is not installed has no package metadata.
    except PackageNotFoundError:
        return "unknown"
