"""A chain: producer -> topic a -> job `first` -> b -> job `second` -> c, on three gateways, with any process of it killed.

Spark's offset log says which records a micro-batch was made of, and a model of each job (`jobs_chained.model`) what it had to write
for them. In the end b and c are these, micro-batch by micro-batch, each in one place: nothing lost, doubled, mixed or late.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from random import Random
from typing import Self

from tests.faults.spark.gates import Gates
from tests.faults.spark.jobs_chained import Chained, Link, model
from tests.faults.spark.matrix import whole
from tests.faults.spark.processes import Job, end
from tests.integration.spark.rows import until
from tests.support.running_group import NAMES, RunningGroup
from tutti import Producer, Reader

KEYS = 7
BATCH_RECORDS = 40
STAND_BATCHES = 20  # micro-batches without records write nothing, and come to no step
VICTIMS = ("first", "second", "workers of first", "workers of second", "gateway", "coordinator")
STEPS = ("staged", "committed")
TOPICS = {"first": ("a", "b"), "second": ("b", "c")}  # which each reads, and writes


class Chain:
    """The jobs, and what is killed of them; `log` is told when."""

    def __init__(self, root: Path, group: RunningGroup, seed: int, log: Callable[[str], None] = lambda _: None) -> None:
        """Nothing is started yet."""
        self.root = root
        self.group = group
        self.chance = Random(seed)
        self.gates = {kind: Gates(root / f"gates-{kind}") for kind in TOPICS}
        self.jobs: dict[str, Job] = {kind: Chained(self.link(kind)) for kind in TOPICS}
        self.kills = 0
        self.sent = 0
        self._began = time.monotonic()
        self._log = log
        self._stack = ExitStack()

    def link(self, kind: str, gates: Gates | None = None) -> Link:
        """What a job is to do."""
        reads, writes = TOPICS[kind]
        source = {"gateways": self.group.url, "topics": reads, "startingOffset": "earliest", "minPartitions": "2"}
        where = str((gates or self.gates[kind]).directory)
        source["maxRecordsPerTrigger"] = str(BATCH_RECORDS)
        return Link(str(self.root / kind), source, where, master="local[2,100]", kind=kind, topic=writes)

    def __enter__(self) -> Self:
        """Begin the producer."""
        self._producer = self._stack.enter_context(Producer(self.group.url, producer="events"))
        return self

    def __exit__(self, *_: object) -> None:
        """Whatever happened, leave no process behind."""
        self._stack.close()

    def start(self) -> None:
        """Start the jobs, each with a driver of its own."""
        for job in self.jobs.values():
            self._stack.enter_context(job).start()

    def send(self, count: int) -> None:
        """So many events more; one of five comes again, soon or much later."""
        receipts = []
        for number in range(self.sent, self.sent + count):
            again = self.chance.random() < 0.2
            event = self.chance.randrange(number + 1) if again else number
            receipts.append(self._producer.send("a", b"%d k%d" % (event, event % KEYS)))
        self.sent += count
        for receipt in receipts:
            receipt.result(100)

    def strike(self, victim: str) -> None:
        """Kill it, and start again what nobody else starts."""
        self._log(f"{time.monotonic() - self._began:5.1f} s: {victim} killed, {self.sent} events sent")
        self.kills += 1
        kind = victim.rpartition(" ")[2]
        if victim in self.jobs:
            self.jobs[kind].kill()
            self.jobs[kind].start()
        elif kind in self.jobs:
            end(*self.jobs[kind].workers())
        else:
            gateway = self.group.coordinator() if victim == "coordinator" else self.group[self.chance.choice(NAMES)]
            gateway.kill()
            gateway.start()
            until(lambda: whole(self.group), "all gateways to be in the view")

    def strike_at(self, kind: str, step: str, victim: str = "") -> None:
        """Kill a job, or someone else, while the job stands still at a step of the next micro-batch that it comes to."""
        batch = self.stand(kind, step)
        self._log(f"{kind} stands in micro-batch {batch}, {step}")
        self.strike(victim or kind)
        self.gates[kind].open(batch, step)

    def stand(self, kind: str, step: str) -> int:
        """Have a job stand still at a step of the next micro-batch that has records and is not planned: its number."""
        gates, first = self.gates[kind], self.planned(kind) + 1
        closed = range(first, first + STAND_BATCHES)
        for batch in closed:
            gates.close(batch, step)
        self.send(BATCH_RECORDS)
        self.jobs[kind].until(lambda: any(gates.here(batch, step) for batch in closed), f"{kind}: {step} from {first} on")
        found = next(batch for batch in closed if gates.here(batch, step))
        for batch in closed:
            if batch != found:
                gates.open(batch, step)
        return found

    def planned(self, kind: str) -> int:
        """The last micro-batch in the offset log, -1 before any."""
        files = Path(self.jobs[kind].task.directory, "checkpoint/offsets").glob("[0-9]*")
        return max((int(file.name) for file in files), default=-1)

    def settle(self) -> None:
        """Wait until both jobs have finished all that is there."""
        for kind, (reads, _) in TOPICS.items():
            last = max(offset for offset, _ in self.records(reads))
            self.jobs[kind].until(partial(self._has_processed, kind, last), f"{kind} to read all of {reads}")

    def records(self, topic: str) -> list[tuple[int, bytes]]:
        """Offsets and values."""
        with Reader(self.group.url, topics=[topic]) as reader:
            return [(record.offset or 0, record.value or b"") for record in reader.records()]

    def findings(self) -> Iterator[str]:
        """What is not as the micro-batches say, once all is settled. Nothing is as it should be."""
        for kind, (reads, writes) in TOPICS.items():
            given, found = self.records(reads), self.records(writes)
            batches = [[value for at, value in given if begin <= at < end] for begin, end in self._ranges(kind)]
            if sum(map(len, batches)) != len(given):
                yield f"{kind} has {sum(map(len, batches))} records of {reads} in its micro-batches, of {len(given)}"
            place = 0
            for number, expected in enumerate(model(kind, batches)):
                some = found[place : place + len(expected)]
                place += len(expected)
                if sorted(value for _, value in some) != expected:
                    yield f"{writes}, micro-batch {number}: {some} instead of {expected}"
                elif some and some[-1][0] - some[0][0] + 1 != len(some):
                    yield f"{writes}, micro-batch {number}: not in one place: offsets {[at for at, _ in some]}"
            if place != len(found):
                yield f"{writes} has {len(found)} records, not {place}"

    def _ranges(self, kind: str) -> list[tuple[int, int]]:
        directory = Path(self.jobs[kind].task.directory, "checkpoint/offsets")
        files = sorted(directory.glob("[0-9]*"), key=lambda file: int(file.name))
        ends = [json.loads(file.read_text().splitlines()[2]) for file in files]
        return [(offset["from"], offset["offset"]) for offset in ends]

    def _has_processed(self, kind: str, offset: int) -> bool:
        return self._processed(kind) > offset

    def _processed(self, kind: str) -> int:
        done = [int(file.name) for file in Path(self.jobs[kind].task.directory, "checkpoint/commits").glob("[0-9]*")]
        return self._ranges(kind)[max(done)][1] if done else 0


def trial(root: Path, group: RunningGroup, seed: int, rounds: int, log: Callable[[str], None]) -> tuple[list[str], int]:
    """Random kills, between random amounts of input and at steps: what was found, and how many there were."""
    with Chain(root, group, seed, log) as chain:
        chance = chain.chance
        chain.start()
        for _ in range(rounds):
            chain.send(chance.randrange(3 * BATCH_RECORDS))
            if chance.random() < 0.5:
                kind = chance.choice(list(TOPICS))
                chain.strike_at(kind, chance.choice(STEPS), chance.choice([kind, "gateway", "coordinator"]))
            else:
                time.sleep(chance.choice([0, 3]) * chance.random())
                chain.strike(chance.choice(VICTIMS))
        chain.settle()
        return list(chain.findings()), chain.kills
