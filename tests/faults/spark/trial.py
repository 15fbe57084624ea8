"""Random trials: producers at random rates through random gateways, a query that is stopped and started again with other options,
gateways that are killed. Whatever happened, each window of events is there once, with each of its events once.

Events are sent in rounds of ten seconds of event time, and all of a round are committed before the next begins: nothing is late,
so what comes out is known without Spark.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from random import Random
from typing import Protocol

from tests.faults.spark.job import WATERMARK_S, WINDOW_S, Task, results
from tests.faults.spark.matrix import TOPICS, whole
from tests.integration.spark.rows import WAIT_S, until
from tests.support.running_group import NAMES, RunningGroup
from tutti import Producer

BEGIN_S = 1000  # Spark takes what happened at 0 for late
ROUND_S = 10
CLOSING_S = 10 * WATERMARK_S
PRODUCERS = 3
EVENTS_MAX = 60  # of a producer, in a round
DISTURBANCES = ("restart", "restart", "restart", "kill one", "kill one", "kill all", "nothing", "nothing")  # in some order


class Runner(Protocol):
    """Where the query runs: in this session, or in processes of its own."""

    def start(self, task: Task) -> None:
        """From its checkpoint if it has one."""

    def end(self, chance: Random) -> None:
        """Stop it, in whatever way."""

    def check(self) -> None:
        """Raise what it failed with."""


@dataclass
class Trial:
    """One, by its seed. `log` is told what happens."""

    group: RunningGroup
    task: Task
    runner: Runner
    seed: int
    log: Callable[[str], None] = lambda _: None
    restarts: int = 0
    kills: int = 0
    sent: set[tuple[int, int]] = field(default_factory=set)
    _coming: list[str] = field(default_factory=list)

    def run(self, rounds: int) -> list[str]:
        """All of it; what is wrong with the result, nothing when it is right."""
        chance = Random(self.seed)
        with ExitStack() as stack:
            producers = [stack.enter_context(self._producer(chance, number)) for number in range(PRODUCERS)]
            self._start(chance, first=True)
            for number in range(rounds):
                self._disturb(chance)
                self._send(chance, producers, number)
            self._mend()
            last = BEGIN_S + rounds * ROUND_S
            for step in (1, 2):  # the watermark of one micro-batch closes windows in the next
                closing = producers[0].send(TOPICS[0], b"-1 %d" % (last + step * CLOSING_S)).result(WAIT_S)
                while (reached := processed(self.task)) <= closing:  # there may be hundreds of small micro-batches before it
                    self._wait(partial(self._processed_beyond, reached), f"closing record {step}")
        self.runner.end(chance)
        return list(self._findings(last))

    def _producer(self, chance: Random, number: int) -> Producer:
        hosts = chance.sample(NAMES, len(NAMES))
        url = "tutti://" + ",".join(f"127.0.0.1:{self.group[name].port}" for name in hosts)
        return Producer(url, producer=f"p{number}", linger=chance.choice([0, 0.005, 0.05]))

    def _send(self, chance: Random, producers: list[Producer], number: int) -> None:
        receipts = []
        for place, producer in enumerate(producers):
            for count in range(chance.randrange(EVENTS_MAX)):
                event = (PRODUCERS * (EVENTS_MAX * number + count) + place, BEGIN_S + number * ROUND_S + chance.randrange(ROUND_S))
                self.sent.add(event)
                times = chance.choice([1, 1, 1, 2])
                receipts += [producer.send(chance.choice(TOPICS), b"%d %d" % event) for _ in range(times)]
        for receipt in receipts:
            receipt.result(WAIT_S)

    def _disturb(self, chance: Random) -> None:
        self.runner.check()
        if not self._coming:
            self._coming = chance.sample(DISTURBANCES, len(DISTURBANCES))
        kind = self._coming.pop()
        if kind == "nothing":
            return
        self._mend()
        if kind == "restart":
            self.runner.end(chance)
            self._start(chance)
        else:
            for name in NAMES if kind == "kill all" else [chance.choice(NAMES)]:
                self.group[name].kill()
                self.kills += 1
                self.log(f"{name} killed")
            if kind == "kill all":
                self._mend()

    def _mend(self) -> None:
        """Start the gateways that are down."""
        down = [gateway for gateway in self.group.all.values() if not gateway.runs]
        for gateway in down:
            gateway.start(wait=False)
        for gateway in down:
            gateway.wait_ready()
        if down:
            until(lambda: whole(self.group), "all gateways to be in the view")

    def _start(self, chance: Random, first: bool = False) -> None:
        """With options that the result does not depend on, drawn anew each time."""
        hosts = chance.sample(NAMES, chance.randint(1, len(NAMES)))
        options = {
            "gateways": "tutti://" + ",".join(f"127.0.0.1:{self.group[name].port}" for name in hosts),
            "topics": ",".join(chance.sample(TOPICS, len(TOPICS))),
            # Once a micro-batch is planned the checkpoint says where it goes on, and this says nothing.
            "startingOffset": chance.choice(["earliest", "latest"]) if self._planned() else "earliest",
        }
        few = {"minRecordsPerTrigger": "20", "maxTriggerDelay": "300ms"}
        more: list[dict[str, str]] = [{"maxRecordsPerTrigger": str(chance.randint(20, 200))}, {"maxBytesPerTrigger": "3000"}]
        for extra in [*more, few, {"minPartitions": str(chance.randint(1, 4))}]:
            if chance.random() < 0.4:
                options |= extra
        if not first:
            self.restarts += 1
        self.log(f"started with {options}")
        self.runner.start(replace(self.task, source=options, available_now=False))

    def _planned(self) -> bool:
        return Path(self.task.directory, "checkpoint/offsets/0").exists()

    def _processed_beyond(self, offset: int) -> bool:
        return processed(self.task) > offset

    def _wait(self, happened: Callable[[], object], what: str) -> None:
        def seen() -> bool:
            self.runner.check()
            return bool(happened())

        until(seen, what)

    def _findings(self, last: int) -> Iterator[str]:
        """Windows that are missing, wrong or there twice; attempts at one micro-batch that differ."""
        attempts = results(self.task.out)
        for batch, rows in attempts.items():
            if any(other != rows[0] for other in rows):
                yield f"micro-batch {batch} gave {rows} in its attempts"
        windows = [tuple(row) for rows in attempts.values() for row in rows[-1] if row[0] < last]
        expected = sorted(self._expected())
        if sorted(windows) != expected:
            yield f"windows {sorted(windows)} instead of {expected}"

    def _expected(self) -> Iterator[tuple[int, int, int]]:
        for begin in sorted({second // WINDOW_S * WINDOW_S for _, second in self.sent}):
            ids = [event for event, second in self.sent if begin <= second < begin + WINDOW_S]
            yield begin, len(ids), sum(ids)


def processed(task: Task) -> int:
    """The offset up to which micro-batches of the query are finished, 0 before any."""
    checkpoint = Path(task.directory, "checkpoint")
    done = [int(file.name) for file in checkpoint.glob("commits/[0-9]*")]
    if not done:
        return 0
    return int(json.loads((checkpoint / "offsets" / str(max(done))).read_text().splitlines()[2])["offset"])
