"""Random test of a spool without network and threads: every record on its disk is in the log once, in the order sent. Connections,
gateways, the process and the power fail, and any disk operation may find a full disk. After a kill or a power loss another process
starts with what the disk may contain then. Then the faults stop, and everything must complete.
"""

from __future__ import annotations

import random
import shutil
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from tests.faults.powerloss.recorder import Filling, Op, chosen, image
from tests.unit.client.fake_gateway import Rules
from tutti import limits
from tutti.batching.accumulator import Accumulator
from tutti.batching.encoder import check_record
from tutti.batching.options import BatchingOptions
from tutti.batching.receipt import Receipt
from tutti.data import client_protocol
from tutti.data.frames.frame import Frame
from tutti.delivery.session import Identity, State
from tutti.errors import DirectoryRefused, DiskFailed, DiskFull, TuttiError
from tutti.spool.delivery import SpooledDelivery
from tutti.spool.disk_thread import DiskThread
from tutti.spool.spool import Spool
from tutti.spool.store import SpoolStore

ROUTING = b"client"
SPOOL_BYTES = 1 << 24
RECORD_BYTES = 900


class World:
    """A producer with a spool, a gateway, and the messages in flight between them."""

    def __init__(self, seed: int, root: Path, uses_progress: bool) -> None:
        self.chance = random.Random(seed)
        self.root = root
        self.uses_progress = uses_progress
        self.gateway = Rules(rule=self.rule)
        self.fates: list[str] = []  # of the next frames that arrive
        self.now = 1000.0
        self.lives = 0
        self.sent: list[tuple[bytes, Receipt]] = []
        self.spooled: set[bytes] = set()  # those that were told to be safe
        self.next_number = 0
        self.directory = root / "0"
        self.directory.mkdir()
        self.recorder = Filling()
        self.begin()

    # -- lives of the producer

    def begin(self) -> None:
        """A process opens the spool."""
        self.lives += 1
        options = BatchingOptions(
            batch_bytes=self.chance.choice([1024, 4096]),
            buffer_bytes=1 << 16,
            compression=self.chance.choice([None, "lz4"]),
        )
        self.store = self.opened()
        self.feed = Accumulator(options, lambda: self.now)
        self.spool = Spool(self.feed, self.store, SPOOL_BYTES)
        self.disk_thread = DiskThread(self.spool, self.store)
        self.delivery = SpooledDelivery(Identity("p", b"i%015d" % self.lives, b"s%015d" % self.lives), self.spool)
        self.to_gateway: deque[list[bytes]] = deque()
        self.to_client: deque[bytes] = deque()
        self.connected = False
        self.resumed = not self.uses_progress

    def opened(self) -> SpoolStore:
        """Open the spool; on a full disk, try again."""
        size = self.chance.choice([2000, 10_000])
        try:
            return SpoolStore(str(self.directory), "p", size, self.recorder)
        except (DiskFull, DiskFailed, DirectoryRefused):
            assert self.recorder.after is None, "nothing else was wrong"
            return SpoolStore(str(self.directory), "p", size, self.recorder)

    def end(self) -> None:
        """End the process; its sent messages may still arrive."""
        self.note()
        self.store.close()
        for _ in range(self.chance.randrange(3)):
            self.arrive()
        self.gateway.known.clear()

    def lose_power(self) -> None:
        """Restart the host with a possible state of its disk."""
        self.end()
        ops = self.recorder.ops
        target = self.root / str(self.lives)
        choose, count = chosen(self.chance, self.chance.randrange(4))
        image(ops, self.directory, target, choose, count)
        (target / "log").rmdir()
        shutil.rmtree(self.directory)
        self.directory = target
        self.recorder = Filling()
        # What is there now is durable.
        for path in sorted(path for path in target.rglob("*") if path.is_file()):
            inode = path.stat().st_ino
            known = self.recorder.inodes[inode] = (1 << 62) + inode
            self.recorder.ops += [Op("create", known, path=str(path)), Op("write", known, 0, path.read_bytes()), Op("sync", known)]
            self.recorder.ops.append(Op("sync directory", path=str(path.parent)))
        self.begin()

    def kill(self) -> None:
        self.end()
        self.begin()

    def note(self) -> None:
        """Remember which records are reported as safe."""
        self.spooled.update(value for value, receipt in self.sent if receipt.batch.spool_position is not None)

    # -- what happens

    def rule(self, heard: Any) -> list[Any] | None:
        if not isinstance(heard, Frame) or not self.fates:
            return None
        fate = self.fates.pop()
        if fate == "lost":
            return []
        if fate == "busy":
            return [client_protocol.RefusedAnswer(heard.producer, heard.epoch, heard.first_sequence, "busy", "full", retry=True)]
        if fate == "malformed":
            return [
                client_protocol.RefusedAnswer(
                    heard.producer, heard.epoch, heard.first_sequence, "malformed", "no Arrow", retry=False
                )
            ]
        line = self.gateway.log.lines["p"]
        if heard.epoch == line.epoch and heard.first_sequence > line.sequence:
            line.closed = True  # an abort; the default answers with it
        return None

    def send(self) -> None:
        if not self.resumed:
            if self.feed.opened is None or self.feed.queue:
                return
            self.next_number = int(self.spool.resume(0.0).progress or b"0")
            self.resumed = True
        if self.feed.exceeded_limit(4096):
            return  # it would wait here for the thread that the test is
        value = b"%d" % self.next_number
        self.next_number += 1
        progress = b"%d" % self.next_number if self.uses_progress else b""
        record = check_record(value.ljust(self.chance.choice([1, RECORD_BYTES])), None, None, ())
        try:
            receipt = self.feed.add("ab"[self.chance.random() < 0.1], record, progress, None)
        except TuttiError:
            return
        self.sent.append((value, receipt))

    def run_disk_thread(self) -> None:
        """The spool's thread has a turn, if it has something to do."""
        with self.feed.lock:
            due = self.feed.queue or self.disk_thread._may_read() or self.disk_thread._may_prune()
        if due:
            try:
                self.disk_thread._work()
            except DiskFailed:  # a sync found no room: nobody knows what is on the disk, and the producer ends
                self.chance.choice([self.kill, self.lose_power])()

    def work(self) -> None:
        self.delivery.work(self.now)
        if self.delivery.session.drop:
            self.cut()
            return
        while self.delivery.session.outbox:
            self.to_gateway.append([bytes(part) for part in self.delivery.session.outbox.popleft()])

    def arrive(self) -> None:
        if self.to_gateway:
            self.to_client += self.gateway.answers(ROUTING, self.to_gateway.popleft())

    def hear(self) -> None:
        if self.to_client and self.connected:
            self.delivery.receive(self.to_client.popleft(), self.now)

    def cut(self) -> None:
        """Lose messages to the gateway, of which some may still arrive, and all answers."""
        if not self.connected:
            return
        for _ in range(self.chance.randrange(4)):
            self.arrive()
        self.to_gateway.clear()
        self.to_client.clear()
        self.gateway.known.clear()
        self.connected = False
        self.delivery.disconnected()

    def connect(self) -> None:
        if not self.connected and self.delivery.session.state is not State.ENDED:
            self.connected = True
            self.delivery.session.connected(self.now)

    def step(self) -> None:
        roll = self.chance.random()
        if roll < 0.30:
            self.send()
        elif roll < 0.45:
            self.run_disk_thread()
        elif roll < 0.60:
            self.work()
        elif roll < 0.75:
            self.arrive()
        elif roll < 0.90:
            self.hear()
        elif roll < 0.94:
            self.connect()
        elif roll < 0.95:
            self.cut()
        elif roll < 0.97:
            self.fates.append(self.chance.choice(["lost", "busy", "malformed", "abort"]))
        elif roll < 0.977:
            self.kill()
        elif roll < 0.983:
            self.lose_power()
        elif roll < 0.99:
            self.recorder.after = self.chance.randrange(12)
        else:
            self.now += self.chance.choice([0.01, 0.1, 1.5])

    def settle(self) -> None:
        """Stop the faults, and wait until everything completes."""
        self.fates.clear()
        self.recorder.after = None
        for _ in range(20_000):
            self.connect()
            self.run_disk_thread()
            self.work()
            self.arrive()
            self.hear()
            self.now += 0.01
            if self.feed.opened is not None and not self.feed.undelivered():
                return
        raise AssertionError(
            f"it does not end: {self.spool.spooled()} {self.delivery.session.state} {self.delivery.session.trouble}"
        )

    # -- what has to hold

    def refused(self) -> Iterator[bytes]:
        """Return the dead-lettered records."""
        for path in sorted((self.directory / "refused").glob("*.arrow")):
            with pa.ipc.open_stream(path.read_bytes()) as stream:
                assert b"no Arrow" in stream.schema.metadata[b"reason"]
                for batch in stream:
                    yield from ((value or b"").strip() for value in batch.column("value").to_pylist())

    def check(self) -> None:
        self.note()
        committed = [(value or b"").strip() for value in self.gateway.log.values()]
        aside = list(self.refused())
        assert len(set(committed)) == len(committed), "a record is in the log twice"
        assert not set(committed) & set(aside), "a record is in the log and put aside"
        numbers = [int(value) for value in committed]
        assert numbers == sorted(numbers), "records are in the log in another order"
        missing = self.spooled - set(committed) - set(aside)
        assert not missing, f"records that were on the disk are gone: {sorted(missing)}"
        if self.uses_progress:
            wanted = {b"%d" % number for number in range(max([*numbers, -1]) + 1)}
            assert wanted <= set(committed) | set(aside), "the source was not read from where the spool ended"
        log = self.gateway.log.records
        for value, receipt in self.sent:
            if receipt.done() and receipt.error is None and (receipt.offset or 0) >= 0:
                assert (log[receipt.result(0)].value or b"").strip() == value
            elif receipt.done() and receipt.error is not None:
                assert value in aside
        assert not self.spool.spooled().records
        self.store.prune(*self.spool.reached(), closing=True)
        kept = [segment.number for segment in self.store.segments.values() if segment.records]  # an empty one may be the last
        assert not kept, "a segment is kept of which all is committed"


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A disk that was full is tried again without a wait."""
    monkeypatch.setattr(limits, "SPOOL_RETRY_US", 0)


@pytest.mark.parametrize("uses_progress", [False, True])
def test_every_record_on_the_disk_commits_once_and_in_order(uses_progress: bool, tmp_path: Path) -> None:
    for seed in range(4):
        live(seed, uses_progress, tmp_path)


@pytest.mark.soak
@pytest.mark.parametrize("uses_progress", [False, True])
@pytest.mark.parametrize("block", range(20))
def test_every_record_on_the_disk_commits_once_despite_random_faults(block: int, uses_progress: bool, tmp_path: Path) -> None:
    for seed in range(1000 + 20 * block, 1020 + 20 * block):
        live(seed, uses_progress, tmp_path)


def live(seed: int, uses_progress: bool, tmp_path: Path) -> None:
    """One world, from its begin to its end."""
    root = tmp_path / str(seed)
    root.mkdir()
    world = World(seed, root, uses_progress)
    try:
        for _ in range(700):
            world.step()
        world.settle()
        world.check()
    except BaseException as error:
        error.add_note(f"seed {seed}, uses_progress {uses_progress}, life {world.lives}")
        raise
    world.store.close()
    shutil.rmtree(root)
