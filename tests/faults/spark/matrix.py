"""The crash matrix: each kind of process killed at each step of a micro-batch, one micro-batch after another.

All records are in the log before, so micro-batches are the same in any run: what an undisturbed run gave is compared with what
each micro-batch gave, every attempt at it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from random import Random
from typing import NamedTuple

from tests.faults.spark.gates import STEPS, Gates
from tests.faults.spark.job import WATERMARK_S, Task, results
from tests.faults.spark.processes import Job, end
from tests.integration.spark.rows import until
from tests.support.running_group import NAMES, RunningGroup
from tutti import Producer

VICTIMS = ("driver", "planner", "executor", "python worker", "gateway", "all gateways")
TOPICS = ("flights", "weather")
BATCH_RECORDS = 300
EVENTS_A_SECOND = 10
RECORD_BYTES = 10_000  # much more than sockets hold, so that a task that stands still has a reader that stands still
LATE_S = 10 * WATERMARK_S


class Cell(NamedTuple):
    """Who is killed at which step."""

    victim: str
    step: str


#: The planner is the Python process in which Spark's driver asks the source for offsets: the query fails with it, by Spark's rules.
EVERY = [Cell(victim, step) for step in STEPS for victim in VICTIMS]


@dataclass
class Killed:
    """What a run of the matrix did: its cells in order, and how often the driver was started."""

    cells: list[Cell]
    starts: int


def values(seed: int, batches: int) -> list[bytes]:
    """Events for so many micro-batches: in disorder, some sent again, some too late; the last two close all windows."""
    chance = Random(seed)
    events: list[bytes] = []
    padding = b" " + b"x" * RECORD_BYTES
    for number in range((batches - 2) * BATCH_RECORDS):
        second = 1000 + number / EVENTS_A_SECOND + chance.uniform(0, WATERMARK_S / 2)
        kind = chance.random()
        if kind < 0.1 and events:
            events.append(chance.choice(events[-BATCH_RECORDS:]))
        else:
            events.append(b"%d %d" % (number, second - (LATE_S if kind > 0.95 else 0)) + padding)
    last = 1000 + batches * BATCH_RECORDS
    closing = [b"%d %d" % (10**6 + number, last + number // BATCH_RECORDS * 1000) for number in range(2 * BATCH_RECORDS)]
    return events + closing


def fill(url: str, sent: Sequence[bytes]) -> None:
    """All of them in this order, by topic in turn."""
    with Producer(url, producer="events") as producer:
        for number, value in enumerate(sent):
            producer.send(TOPICS[number % len(TOPICS)], value)


def source(url: str, **more: str) -> dict[str, str]:
    """Options with which micro-batches are the same in any run."""
    limits = {"maxRecordsPerTrigger": str(BATCH_RECORDS), "minPartitions": "2"}
    return {"gateways": url, "topics": ",".join(TOPICS), "startingOffset": "earliest"} | limits | more


def whole(group: RunningGroup) -> bool:
    """Whether all of the group are in its view."""
    told = [group.status(name) for name in NAMES if group[name].runs]
    return len(told) == len(NAMES) and all(len(status["view"]["members"]) == len(NAMES) for status in told)


def run(
    group: RunningGroup, task: Task, cells: Sequence[Cell], chance: Random, log: Callable[[str], None] = lambda _: None
) -> Killed:
    """Run the task to its end, kill cell n in micro-batch n, and log when."""
    began = time.monotonic()
    gates = Gates(Path(task.directory, "gates"))
    for batch, cell in enumerate(cells):
        gates.close(batch, cell.step)
    with Job(replace(task, gates=str(gates.directory))) as job:
        job.start()
        for batch, cell in enumerate(cells):
            job.until(partial(gates.here, batch, cell.step), f"micro-batch {batch}: {cell.step}")
            log(f"{time.monotonic() - began:5.1f} s: {cell.victim} killed in micro-batch {batch}, {cell.step}")
            strike(group, job, cell, gates.here(batch, cell.step), chance)
            gates.open(batch, cell.step)
            mend(group, job, cell)
        job.wait_end()
        log(f"{time.monotonic() - began:5.1f} s: done")
        return Killed(list(cells), job.starts)


def strike(group: RunningGroup, job: Job, cell: Cell, here: Sequence[int], chance: Random) -> None:
    """Kill it; `here` are those who stand at the gate."""
    match cell.victim:
        case "driver":
            job.kill()
        case "planner":
            end(*job.planners())
        case "executor":
            executors = job.executors()
            end(job.executor_of(here[0]) if cell.step == "reading" else chance.choice(executors))
        case "python worker":
            end(*job.workers())
        case "gateway":
            group[chance.choice(NAMES)].kill()
        case "all gateways":
            for name in NAMES:
                group[name].kill()


def mend(group: RunningGroup, job: Job, cell: Cell) -> None:
    """Start what is killed, where nobody else does."""
    if cell.victim == "driver":
        job.start()
    elif cell.victim == "planner":
        job.wait_failed()
        job.start()
    elif "gateway" in cell.victim:
        down = [gateway for gateway in group.all.values() if not gateway.runs]
        for gateway in down:
            gateway.start(wait=False)
        for gateway in down:
            gateway.wait_ready()
        until(lambda: whole(group), "all gateways to be in the view")


def findings(undisturbed: Path, disturbed: Path) -> list[str]:
    """What differs between the rows of two runs, micro-batch by micro-batch; nothing is as it should be."""
    expected, found = results(undisturbed), results(disturbed)
    said = [f"micro-batches {sorted(expected)} without kills, {sorted(found)} with"] if set(expected) != set(found) else []
    for batch in sorted(set(expected) & set(found)):
        right = expected[batch][0]
        said += [
            f"micro-batch {batch}, attempt {attempt}: {rows} instead of {right}"
            for attempt, rows in enumerate(found[batch])
            if rows != right
        ]
    return said
