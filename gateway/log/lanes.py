"""The lanes in a gateway's directory: one log each, written, found again and read as the ordered one is (design, section 7).

`DIR/lanes/NUMBER-INCARNATION/` has all that a data directory has but the lock, which is the gateway's. The log in it begins with a
VIEW frame and has only those and batches; its uuid is the incarnation. Of the scalars `promised` is the attempt, and stays 0 in the
lanes of others. `DIR/lane` names the own lane from before its first write, so that one that is gone is not taken for one that never
began.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections import OrderedDict
from collections.abc import Collection, Iterable, Iterator
from dataclasses import replace
from functools import partial
from typing import Protocol

import msgspec

from gateway.core import limits
from gateway.core.actions import DeliverUnordered, PersistLane, ReadLane
from gateway.core.events import LaneLog, Recovered, Scalars
from gateway.data.frame import Frame
from gateway.data.lanes import LaneName
from gateway.data.state import LogState
from gateway.errors import Damaged, DiskFull, InvariantViolated, WrongDirectory
from gateway.log.directory import Identity, read_identity
from gateway.log.lanes_there import OWN, REPLACE, START, SUSPECT, lane_path, lanes_there, noted_lane
from gateway.log.layout import FORMAT_VERSION, IDENTITY, LOG, positions_named
from gateway.log.options import LogOptions
from gateway.log.room import failure_of
from gateway.log.salvage import salvage
from gateway.log.storage import Storage
from gateway.log.together import together
from gateway.log.verify import verify
from gateway.log.writer import LogWriter

_ASIDE = ".damaged-"


def path_of_disk(directory: str, incarnation: bytes) -> str:
    """The directory of the lane of a disk.

    Raises:
        WrongDirectory: there is none.
    """
    for lane in lanes_there(directory):
        if lane.incarnation == incarnation:
            return lane_path(directory, lane)
    raise WrongDirectory(f"{directory} holds no lane of disk {incarnation.hex()}")


class Owner(Protocol):
    """The gateway's directory, locked: `gateway.log.directory.Directory`."""

    path: str

    @property
    def gateway(self) -> str:
        """Name of the gateway."""

    @property
    def group(self) -> str:
        """Name of its group."""

    @property
    def incarnation(self) -> bytes:
        """16 bytes that name this disk."""

    def freshen(self, after_us: int) -> None:
        """Something was promised or voted for: have that told from copies made before."""


class LaneHome:
    """The directory of one lane. Whoever holds the lock of the gateway's directory writes it."""

    def __init__(self, path: str, identity: Identity, owner: Owner, storage: Storage) -> None:
        """Made by `open_home`."""
        self.path = path
        self.storage = storage
        self._identity = identity
        self._owner = owner

    @property
    def copied(self) -> bool:
        """A copy is told by the directory that it is in."""
        return False

    @property
    def incarnation(self) -> bytes:
        """16 bytes: of the disk whose lane it is."""
        return bytes.fromhex(self._identity.incarnation)

    @property
    def log(self) -> bytes:
        """The same once the lane has begun, empty before."""
        return bytes.fromhex(self._identity.log)

    def remember_log(self, log: bytes) -> None:
        """Write down that the lane has durably begun, or has not."""
        if log != self.log:
            self._identity = msgspec.structs.replace(self._identity, log=log.hex())
            _write_identity(self.path, self._identity, self.storage)

    def settle(self) -> None:
        """It is what it was."""

    def freshen(self, after_us: int) -> None:
        """A lane of an earlier time is told by the directory that it is in."""
        self._owner.freshen(after_us)

    def renew(self) -> None:
        """It has nobody's vote: that is its gateway's."""
        raise InvariantViolated(f"the lane in {self.path} was to become another disk's")

    def close(self) -> None:
        """Its gateway has the lock."""


def open_home(owner: Owner, lane: LaneName, storage: Storage) -> LaneHome:
    """The directory of a lane, which is made, durably, if it is not there.

    Raises:
        Damaged: there is a log in it and nothing says whose.
    """
    path = lane_path(owner.path, lane)
    identity = read_identity(path)
    if identity is None:
        if positions_named(path, "seg"):
            raise Damaged(f"{os.path.join(path, IDENTITY)} is missing and the lane's log is there: restore the file")
        for folder in (os.path.dirname(path), path, os.path.join(path, LOG)):
            with contextlib.suppress(FileExistsError):
                os.mkdir(folder)
        identity = Identity(FORMAT_VERSION, owner.gateway, owner.group, lane.incarnation.hex())
        _write_identity(path, identity, storage)
        storage.make_names_durable(os.path.dirname(path))
        storage.make_names_durable(owner.path)
    elif not os.path.isdir(os.path.join(path, LOG)):
        raise Damaged(f"{path} has lost its {LOG} folder: restore it")
    return LaneHome(path, identity, owner, storage)


def _write_identity(path: str, identity: Identity, storage: Storage) -> None:
    data = msgspec.json.format(msgspec.json.encode(identity), indent=2) + b"\n"
    storage.replace_file(os.path.join(path, IDENTITY), data)


class LaneWriter(LogWriter):
    """The log of a lane, which keeps a line of each producer."""

    @property
    def at_rest(self) -> bool:
        """Whether nothing is to be done while it is idle: most lanes stand still most of the time."""
        return not self._marking.behind and self._marking.durable == self._end

    @property
    def producers(self) -> set[int]:
        """Those of which it keeps one."""
        return set(self._indexer.state.producers)

    def forget(self, producers: Iterable[int]) -> None:
        """The ordered log forgot these: their numbers never come again."""
        for number in producers:
            self._indexer.state.producers.pop(number, None)

    def keep(self, known: Collection[int], following: int) -> None:
        """Forget who is not among those that the ordered log knows; it gives numbers from `following` on next."""
        self.forget([one for one in self._indexer.state.producers if one not in known and one < following])


def _idle(writer: LaneWriter, left: list[bool]) -> None:
    left.append(writer.idle())


class LaneLogs:
    """All lanes of one gateway. One thread uses it, but for `frontier`; the writers of lanes that nobody writes to are closed.

    After `DiskFull` the same call comes again; after `DiskFailed` none may.

    Attributes:
        told: what a start had to do about damage, a sentence each, for the operator.
        damaged: lanes of which something decided cannot be read here: what is known of it, and what to do. Any thread may read it.
    """

    def __init__(self, owner: Owner, options: LogOptions | None = None, storage: Storage | None = None) -> None:
        """The lanes of a gateway's directory."""
        self._owner = owner
        self._directory = owner.path
        self._incarnation = owner.incarnation
        self._options = replace(
            options or LogOptions(),
            segment_bytes=limits.LANE_SEGMENT_BYTES,
            prepared_segments=0,
            reserved_bytes=0,
            retention_bytes=0,
            retention_us=0,
        )
        self._storage = storage or Storage()
        self._writers: OrderedDict[LaneName, LaneWriter] = OrderedDict()
        self._lock = threading.Lock()  # of what is open, for `frontier`
        self._written: set[LaneName] = set()  # and not synced
        self._attempts: dict[LaneName, int] = {}  # of the own lanes: there is another one when this gateway got another number
        self._noted: LaneName | None = None
        self._number = 0  # of this gateway, 0 while the log does not say it
        self.told: list[str] = []
        self.damaged: dict[LaneName, str] = {}

    # Starting

    def start(self, ordered: LogState | None = None) -> tuple[LaneLog, ...]:
        """What is there. Of a damaged lane of another gateway what is good stays, to be learned on from; the own one is halted.

        Args:
            ordered: what the ordered log says: which number this gateway has, and whom it forgot while this one was down.

        Raises:
            WrongDirectory: something was written by a newer release.
            DiskFull, DiskFailed: the disk has no room, or failed.
        """
        roster = ordered.roster if ordered is not None else {}
        self._number = next((number for number, one in roster.items() if one.incarnation == self._incarnation), 0)
        found = [self._find(lane) for lane in lanes_there(self._directory)]
        if ordered is not None:
            for writer in self._writers.values():
                writer.keep(ordered.producers, ordered.next_producer)
        own = self._noted_own()
        if own is not None and self._own(own) and own not in [(log.origin, log.incarnation) for log in found]:
            path = lane_path(self._directory, own)
            found.append(self._halted(own, f"{path} is gone, and {os.path.join(self._directory, OWN)} says that it began"))
        return tuple(found)

    def _find(self, lane: LaneName) -> LaneLog:
        try:
            self._look_at(lane)
            recovered = self._open(lane)[1]
        except Damaged as error:
            if self._own(lane):
                return self._halted(lane, str(error))
            with self._watching(lane):
                recovered = self._learn_again(lane, str(error))
        return self._log_of(lane, recovered)

    def _own(self, lane: LaneName) -> bool:
        """Whether this gateway is the origin: with this disk, and under the number that it has, where that is known."""
        return lane.incarnation == self._incarnation and self._number in (0, lane.origin)

    def _look_at(self, lane: LaneName) -> None:
        """Look at all of a lane in which something could not be read. Of the own one that is told and no more: its end is good, so
        that it goes on, and the others have what is lost.

        Raises:
            Damaged: something of another's lane is lost.
        """
        path = lane_path(self._directory, lane)
        if not os.path.exists(os.path.join(path, SUSPECT)):
            return
        damage = [found for found in verify(path).damage if not found.derived]
        if not damage:
            self._storage.remove(os.path.join(path, SUSPECT))
            return
        lost = f"{damage[0].file}, byte {damage[0].byte}, position {damage[0].position}: {damage[0].what}"
        if not self._own(lane):
            raise Damaged(lost)
        self.damaged[lane] = f"{lost}: {REPLACE}"
        self.told.append(f"records of this gateway's own lane cannot be read here: {self.damaged[lane]}")

    def _log_of(self, lane: LaneName, recovered: Recovered) -> LaneLog:
        state, tail = recovered.state, recovered.tail
        attempt, lines = tail[-1].view if tail else state.view, {}
        if lane.incarnation == self._incarnation:
            attempt = self._attempts[lane] = max(attempt, recovered.scalars.promised)
            lines = {number: (line.epoch, line.sequence) for number, line in state.producers.items()}
        return LaneLog(
            origin=lane.origin,
            incarnation=lane.incarnation,
            attempt=attempt,
            position=state.position,
            chain=state.chain,
            offset=state.next_offset,
            tail=tail,
            lines=lines,
        )

    def _halted(self, lane: LaneName, reason: str) -> LaneLog:
        """What was decided in the own lane is not all known here: nobody may go on with it."""
        reason = f"the lane of this gateway takes nothing more: {reason}"
        self.told.append(reason)
        return LaneLog(origin=lane.origin, incarnation=lane.incarnation, halted=reason)

    def _learn_again(self, lane: LaneName, reason: str) -> Recovered:
        """Set a damaged lane aside, and begin anew with what is good of it: the others have all that was decided."""
        path = lane_path(self._directory, lane)
        number = 1
        while os.path.exists(aside := f"{path}{_ASIDE}{number}"):
            number += 1
        self._storage.rename(path, aside)
        self._storage.make_names_durable(os.path.dirname(path))
        writer, _ = self._open(lane)
        with contextlib.suppress(DiskFull):  # what finds no room now is learned later: no reason not to start
            salvage(aside, writer)
        self._close(lane)
        recovered = self._open(lane)[1]
        self.told.append(
            f"lane {lane.text} was damaged and is learned again from the other gateways behind position "
            f"{recovered.state.position}; what was there is kept in {aside}, which may be removed when the lane is whole: {reason}"
        )
        return recovered

    def _noted_own(self) -> LaneName | None:
        """The own lane, if it ever began with this disk."""
        lane = noted_lane(self._directory)
        self._noted = lane if lane is not None and lane.incarnation == self._incarnation else None
        return self._noted

    # What is open

    def lines(self, lane: LaneName) -> set[int]:
        """The producers of which an open lane keeps a line."""
        return self._writers[lane].producers

    @property
    def open(self) -> int:
        """How many lanes are."""
        return len(self._writers)

    def _open(self, lane: LaneName) -> tuple[LaneWriter, Recovered]:
        with self._watching(lane):
            home = open_home(self._owner, lane, self._storage)
        writer, recovered = LaneWriter.open(home, replace(self._options, lane=lane.incarnation), self._storage)
        with self._lock:
            self._writers[lane] = writer
        if len(self._writers) > limits.LANES_OPEN_MAX:
            others = [one for one in self._writers if one != lane and one.incarnation != self._incarnation]
            if self._written.issuperset(others):  # one round may write more lanes than may be open
                self.sync()
            self._close(next(one for one in others if one not in self._written))
        return writer, recovered

    def _close(self, lane: LaneName) -> None:
        with self._lock:
            writer = self._writers.pop(lane)
        writer.close()

    def _writer(self, lane: LaneName) -> LaneWriter:
        if lane not in self._writers:
            if lane.incarnation == self._incarnation and lane != self._noted:
                self._note(lane)
            self._open(lane)
        self._writers.move_to_end(lane)
        return self._writers[lane]

    def _note(self, lane: LaneName) -> None:
        """The own lane begins: it is there, and that it must be is written down."""
        with self._watching(lane):
            open_home(self._owner, lane, self._storage)
            self._storage.replace_file(os.path.join(self._directory, OWN), f"{lane.text}\n".encode())
        self._noted = lane

    @contextlib.contextmanager
    def _watching(self, lane: LaneName) -> Iterator[None]:
        """Give errors of the system their meaning."""
        try:
            yield
        except OSError as error:
            raise failure_of("making", lane_path(self._directory, lane), error) from error

    # What is wanted

    def persist(self, action: PersistLane) -> None:
        """Carry an action out, but for the sync of its frames.

        Raises:
            DiskFull: there is no room; the same action is to come again.
            DiskFailed: the disk failed, now or before.
        """
        lane = LaneName(action.origin, action.incarnation)
        writer = self._writer(lane)
        if action.cut is not None:
            writer.cut(action.cut)
        if action.frames:
            self._written.add(lane)
            writer.append(action.frames)
        if action.attempt is not None and action.attempt > self._attempts.get(lane, 0):
            self.sync()
            writer.write_scalars(Scalars(promised=action.attempt))
            self._attempts[lane] = action.attempt

    def sync(self) -> None:
        """Make all that was written durable, of all lanes at a time."""
        together([partial(self._sync, lane) for lane in self._written])

    def _sync(self, lane: LaneName) -> None:
        self._writers[lane].sync()
        self._written.discard(lane)

    def read(self, action: ReadLane) -> tuple[Frame, ...]:
        """Durable frames from the first one on; none if they cannot be read."""
        return self._writer(LaneName(action.origin, action.incarnation)).read(action.first, action.last)[0]

    def suspect(self, incarnation: bytes) -> list[LaneName]:
        """Somebody could not read a lane, whose incarnation begins so: the next start looks at all of it.

        Returns those of which this was not known.
        """
        new = []
        for lane in lanes_there(self._directory):
            path = os.path.join(lane_path(self._directory, lane), SUSPECT)
            if lane.incarnation.startswith(incarnation) and not os.path.exists(path):
                self._storage.replace_file(path, b"", durable=False)
                self.damaged[lane] = f"a read met something: {REPLACE if self._own(lane) else START}"
                new.append(lane)
        return new

    def frontier(self, lane: LaneName, position: int, offset: int) -> None:
        """Show how far the own lane is decided, before any receipt leaves. Called from any thread."""
        if lane.incarnation == self._incarnation:
            with self._lock:
                self._writers[lane].frontier(position, offset)

    def decided(self, run: DeliverUnordered) -> None:
        """Show how far another's lane is decided, and index what is."""
        lane = LaneName(run.origin, run.incarnation)
        writer = self._writer(lane)
        offsets, offset = [], run.first_offset
        for frame in run.frames:
            offsets.append(offset)
            offset += frame.count
        if lane.incarnation != self._incarnation:
            writer.frontier(run.frames[-1].position, offset)
        writer.decided(run.frames, offsets)

    def forget(self, producers: Iterable[int]) -> None:
        """The ordered log forgot these producers."""
        for writer in self._writers.values():
            writer.forget(producers)

    def idle(self) -> bool:
        """What is to be done when nothing is queued; True while something is left: call again within 10 ms."""
        left: list[bool] = []
        together([partial(_idle, writer, left) for writer in self._writers.values() if not writer.at_rest])
        return any(left)

    def close(self) -> None:
        """Let everything go, all of it whatever the disk says to the mark of one."""
        with contextlib.ExitStack() as closing:
            for lane in list(self._writers):
                closing.callback(self._close, lane)
