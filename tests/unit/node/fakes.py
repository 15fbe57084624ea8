"""Fakes for the node's interfaces, and batches to submit."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from random import Random
from typing import Any, Literal

import pyarrow as pa
import structlog

from tutti.data.client_protocol import Duplicate, FromGateway, decode_from_gateway, decode_receipts
from tutti.data.frames.frame import Frame, Kind
from tutti.data.frames.plain_body import raw_length_of
from tutti.data.frames.schema import BATCH_SCHEMA, HEADERS, TIMESTAMP, compression_flags, encode_batch, timestamp_range
from tutti.data.hard_state import HardState
from tutti.errors import DiskFull
from tutti.log.files.options import FreeSpace
from tutti_gateway.core.protocol.actions import (
    Action,
    Deliver,
    DeliverUnordered,
    LaneHeld,
    Persist,
    PersistLane,
    ReadLane,
    ReadLog,
    ReadSnapshot,
    RepairLane,
    RepairLog,
)
from tutti_gateway.core.protocol.events import Event, LaneLog, LinkChanged, Now, Received, TrimProposed
from tutti_gateway.core.protocol.messages import Damage
from tutti_gateway.core.protocol.messages import Message as GroupMessage
from tutti_gateway.core.stack import Stack
from tutti_gateway.log.upkeep.retention import BlockedSegments
from tutti_gateway.log.upkeep.scrubber import CorruptRange
from tutti_gateway.log.upkeep.snapshot_scrubber import SnapshotScrubber
from tutti_gateway.node.clients.duplicate_lookup import DuplicateLookup
from tutti_gateway.node.clients.port import ClientPort, Message, SendResult
from tutti_gateway.node.common.clock import Clock
from tutti_gateway.node.disk.lane_thread import LaneThread
from tutti_gateway.node.disk.log_thread import LogThread
from tutti_gateway.node.peers.peer_network import PeerNetwork
from tutti_gateway.transport.interface import Trouble

LOG = structlog.get_logger()
START_US = 1_700_000_000_000_000


def record_batch(values: Sequence[bytes | None], first_us: int = START_US) -> pa.RecordBatch:
    """Records with these values, a microsecond apart."""
    count = len(values)
    columns: list[pa.Array[Any]] = [
        pa.nulls(count, pa.binary()),
        pa.array(values, pa.binary()),
        pa.array(range(first_us, first_us + count), TIMESTAMP),
        pa.nulls(count, HEADERS),
    ]
    return pa.record_batch(columns, schema=BATCH_SCHEMA)


def batch_frame(
    values: Sequence[bytes | None] = (b"x",),
    *,
    producer: int = 1,
    epoch: int = 1,
    sequence: int = 1,
    topic: int = 1,
    progress: bytes = b"",
    compression: Literal["lz4", "zstd"] | None = None,
) -> Frame:
    """An unplaced BATCH frame as a client makes it."""
    batch = record_batch(values)
    low, high = timestamp_range(batch.column(2))
    body = bytes(encode_batch(batch, compression))
    return Frame(
        Kind.BATCH,
        body,
        progress=progress,
        flags=compression_flags(compression),
        producer=producer,
        epoch=epoch,
        first_sequence=sequence,
        count=len(values),
        topic=topic,
        min_timestamp=low,
        max_timestamp=high,
        raw_length=raw_length_of(body, len(values)),
    )


class Clients(ClientPort):
    """Takes answers; `gone` and `full` are routings that cannot be reached."""

    def __init__(self) -> None:
        self.sent: list[tuple[bytes, bytes]] = []
        self.gone: set[bytes] = set()
        self.full: set[bytes] = set()

    def send(self, routing: bytes, data: bytes) -> SendResult:
        if routing in self.gone:
            return SendResult.DISCONNECTED
        if routing in self.full:
            return SendResult.FULL
        self.sent.append((routing, data))
        return SendResult.SENT

    def told(self, routing: bytes) -> list[FromGateway | tuple[int, int, int, int, int]]:
        """What a client was told so far, decoded: control messages, and receipts as rows; empties the list."""
        told: list[FromGateway | tuple[int, int, int, int, int]] = []
        for to, data in self.sent:
            if to == routing and data[:1] == b"R":
                told.extend(decode_receipts(data))
            elif to == routing:
                told.append(decode_from_gateway(data))
        self.sent = [(to, data) for to, data in self.sent if to != routing]
        return told


class Lookups(DuplicateLookup):
    """Keeps what is to be looked up."""

    def __init__(self) -> None:
        self.queued: list[tuple[int, list[Duplicate]]] = []

    @property
    def waiting(self) -> int:
        return sum(len(duplicates) for _, duplicates in self.queued)

    def put(self, session: int, duplicates: list[Duplicate]) -> None:
        self.queued.append((session, duplicates))


class DiskQueue(LogThread):
    """Keeps what the driver queues."""

    def __init__(self) -> None:
        self.queued: list[Persist | ReadLog | ReadSnapshot | Deliver | RepairLog] = []

    def put(self, action: Persist | ReadLog | ReadSnapshot | RepairLog) -> None:
        self.queued.append(action)

    def deliver(self, action: Deliver) -> None:
        self.queued.append(action)


class LaneQueue(LaneThread):
    """Keeps what the driver queues for the lanes, in order: `shown` before receipts leave, `queued` all else."""

    def __init__(self) -> None:
        self.there: tuple[LaneLog, ...] = ()
        self.shown: list[DeliverUnordered] = []
        self.forgotten: list[int] = []
        self.queued: list[PersistLane | ReadLane | RepairLane | LaneHeld | DeliverUnordered] = []

    def set_recovered(self, lanes: tuple[LaneLog, ...]) -> None:
        self.there = lanes

    def put(self, action: PersistLane | ReadLane | RepairLane | LaneHeld) -> None:
        self.queued.append(action)

    def publish_frontier(self, run: DeliverUnordered) -> None:
        self.shown.append(run)

    def deliver(self, run: DeliverUnordered) -> None:
        self.queued.append(run)

    def forget(self, producers: tuple[int, ...]) -> None:
        self.forgotten.extend(producers)


class HandClock(Clock):
    """Moves when it is told to."""

    def __init__(self) -> None:
        self.time_us = 1_000_000

    def mono_us(self) -> int:
        return self.time_us

    def now(self) -> Now:
        return Now(self.time_us, START_US + self.time_us)


class Script:
    """A stack that answers events by a function and remembers them."""

    def __init__(self, answer: Callable[[Event], Sequence[Action]]) -> None:
        self.answer = answer
        self.events: list[Event] = []

    def step(self, event: Event, now: Now) -> Sequence[Action]:
        self.events.append(event)
        return self.answer(event)


class Snapshots(SnapshotScrubber):
    """Has nothing to tell."""

    def __init__(self) -> None:
        """There are no files."""

    def pop_messages(self) -> list[str]:
        return []


class Mender:
    """Finds what a test says is lost, and takes what comes for it unless it is told not to."""

    def __init__(self) -> None:
        self.ranges: list[tuple[int, int]] = []  # that are lost and were not found yet
        self.lost: CorruptRange | None = None
        self.message = ""
        self.snapshots = Snapshots()
        self.found = self.repaired = self.rounds = self.looks = 0
        self.suspects: list[int] = []
        self.takes = True
        self.full = False

    @property
    def urgent(self) -> bool:
        return bool(self.suspects)

    def scrub(self) -> bool:
        self.looks += 1
        self.suspects.clear()
        if self.lost is not None:
            return False
        if self.ranges:
            self.lost = CorruptRange(*self.ranges.pop(0), 0, 0)
            self.found += 1
        return self.lost is not None

    def repair(self, frames: Sequence[Frame]) -> int:
        if self.full:
            raise DiskFull("no room")
        if not self.takes or self.lost is None:
            return 0
        self.repaired += len(frames)
        last, first = self.lost.last, self.lost.first + len(frames)
        self.lost = self.lost._replace(first=first) if first <= last else None
        return len(frames)

    def suspect(self, position: int) -> None:
        self.suspects.append(position)


class Trimming:
    """Proposes what it is told, and reads one state."""

    def __init__(self, writer: Writer) -> None:
        self._writer = writer
        self.proposed: TrimProposed | None = None
        self.blocked: BlockedSegments | None = None

    def propose(self, now_us: int) -> TrimProposed | None:
        return self.proposed

    def read_snapshot(self, position: int, at: int) -> tuple[int, int, bytes]:
        if self._writer.unreadable:
            raise OSError(5, "unreadable")
        return position or 7, 9, b"123456789"[at:]


class Writer:
    """A log that only notes what is done to it; fails or is full on demand."""

    def __init__(self) -> None:
        self.done: list[str] = []
        self.full = False
        self.reserve = True
        self.no_rows = False
        self.broken = ""
        self.unreadable = False
        self.frame = batch_frame()  # what a read finds
        self.room = FreeSpace(1 << 40, False, "")
        self._trimming = Trimming(self)
        self.scrubber = Mender()
        self.corrupt_end: Damage | None = None

    def append(self, frames: Sequence[Frame], *, must: bool = False) -> None:
        if self.full and not (must and self.reserve):
            raise DiskFull("no room for a segment")
        self.done.append("append " + " ".join(str(frame.first_sequence) for frame in frames))

    def sync(self) -> None:
        if self.broken:
            raise OSError(5, self.broken)
        self.done.append("sync")

    def write_hard_state(self, scalars: HardState) -> None:
        if self.full:
            raise DiskFull("no room for the scalars")
        self.done.append(f"scalars {scalars.promised}")

    def truncate(self, position: int) -> None:
        if self.full:
            raise DiskFull("no room for a cut")
        self.done.append(f"cut {position}")

    def read(self, first: int, last: int) -> tuple[tuple[Frame, ...], int]:
        if self.unreadable:
            raise OSError(5, "unreadable")
        self.done.append(f"read {first} {last}")
        return (self.frame,), first

    def decided(self, frames: Sequence[Frame], offsets: Sequence[int], aborted: frozenset[int]) -> None:
        if self.no_rows:
            raise DiskFull("no room for the index")
        self.done.append("decided " + " ".join(str(frame.first_sequence) for frame in frames))

    def idle(self) -> bool:
        return False

    def space(self) -> FreeSpace:
        return self.room

    @property
    def retention(self) -> Trimming:
        return self._trimming

    def replace(self, snapshot: bytes) -> None:
        if self.full:
            raise DiskFull("no room for a snapshot")
        self.done.append(f"replace {snapshot.decode()}")


def message(routing: bytes, parts: Sequence[bytes | bytearray | memoryview]) -> Message:
    """A message as the port hands it over."""
    return Message(routing, list(parts), sum(map(len, parts)))


def token() -> bytes:
    """A client's session."""
    return os.urandom(16)


class Wire:
    """A transport that keeps what it is given and brings what it is told to; its one socket never has anything."""

    def __init__(self) -> None:
        self.introduced: list[tuple[int, bytes]] = []
        self.told: list[Sequence[tuple[int, str, str]]] = []
        self.sent: list[tuple[int, GroupMessage]] = []
        self.left: list[tuple[int, GroupMessage]] = []
        self.coming: list[Received | LinkChanged] = []
        self.wrong: list[Trouble] = []

    def introduce(self, number: int, log: bytes) -> None:
        self.introduced.append((number, log))

    def set_peers(self, peers: Sequence[tuple[int, str, str]]) -> None:
        self.told.append(peers)

    def send(self, to: int, message: GroupMessage) -> None:
        self.sent.append((to, message))

    def flush(self) -> None:
        self.left, self.sent = self.left + self.sent, []

    def drain(self, messages_max: int, bytes_max: int, ready: object = None) -> list[Received | LinkChanged]:
        coming, self.coming = self.coming[:messages_max], self.coming[messages_max:]
        return coming

    @property
    def unread(self) -> bool:
        return False

    def descriptors(self) -> Sequence[int]:
        return []

    def next_us(self) -> int | None:
        return None

    def maintain(self) -> list[Trouble]:
        wrong, self.wrong = self.wrong, []
        return wrong

    def release_memory(self) -> None:
        self.coming.clear()

    def facts(self) -> dict[str, object]:
        return {"kind": "wire"}

    def close(self) -> None:
        """Nothing is open."""


def network(wire: Wire | None = None) -> PeerNetwork:
    """The other gateways, of whom nothing is heard unless the wire says so."""
    return PeerNetwork(wire or Wire(), Stack(Random), LOG)
