"""The whole crash matrix, again and again: `python -m tests.faults.spark.soak --minutes M [--seed S]`.

Each round kills every kind of process at every step of a micro-batch, in an order that the seed gives, on a Spark cluster of two
executors, and holds each attempt at each micro-batch against a run without kills. The second of three rounds is a trial of random
kills, rates, restarts and options of the source, the third one of two jobs in a chain. Prints each round, and one line of figures.
Exit 1 when anything differed: the directory of that round is kept, and the same seed chooses the same again.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import tempfile
import time
from pathlib import Path
from random import Random

from tests.faults.spark import chain, matrix
from tests.faults.spark.job import Task, results
from tests.faults.spark.processes import Job
from tests.faults.spark.trial import DISTURBANCES, Trial
from tests.support import spark_classes
from tests.support.running_group import RunningGroup

TRIAL_ROUNDS = 2 * len(DISTURBANCES)
CHAIN_ROUNDS = 12
CLUSTER = "local-cluster[2,1,512]"
#: By default Spark gives up a task after four failures, and a driver after ten lost executors; kills are what is wanted here.
LENIENT = {
    "spark.task.maxFailures": "100",
    "spark.deploy.maxExecutorRetries": "-1",
    "spark.executor.extraJavaOptions": spark_classes.options(),
}


def matrix_round(root: Path, seed: int, cells: list[matrix.Cell], quiet: bool = False) -> list[str]:
    """One time through the cells; what was found."""
    chance = Random(seed)
    chance.shuffle(cells)
    with RunningGroup(root) as group:
        matrix.fill(group.url, matrix.values(seed, len(cells) + 2))
        source = matrix.source(group.url)
        calm = Task(str(root / "calm"), source)
        with Job(calm) as job:
            job.start()
            job.wait_end()
        began = time.monotonic()
        wild = Task(str(root / "wild"), source, master=CLUSTER, settings=LENIENT)
        killed = matrix.run(group, wild, cells, chance)
        found = matrix.findings(calm.out, wild.out)
    attempts = sum(len(rows) for rows in results(wild.out).values())
    if not quiet:
        print(
            f"matrix, seed {seed}: {len(cells)} kills, {killed.starts} starts of the driver, {attempts} attempts at "
            f"{len(results(wild.out))} micro-batches in {time.monotonic() - began:.0f} s, {len(found)} findings",
            flush=True,
        )
    return found


class InProcesses:
    """A query in processes of its own, which are killed at any moment, all at once."""

    def __init__(self) -> None:
        """None runs yet."""
        self._job: Job | None = None

    def start(self, task: Task) -> None:
        """From its checkpoint if it has one; returns when Spark is there, before the query is."""
        self._job = Job(task)
        self._job.start()
        up = Path(task.directory, f"up-{self._job.all[0]}")
        self._job.until(up.exists, "Spark to be there")

    def end(self, chance: Random) -> None:
        """SIGKILL, after a time in which it may have come to anything."""
        assert self._job is not None
        time.sleep(chance.choice([0, 1, 3]) * chance.random())
        self._job.kill()

    def check(self) -> None:
        """Raise what it ended with."""
        assert self._job is not None
        assert self._job.runs, self._job.tail()

    def close(self) -> None:
        """Leave nothing behind."""
        if self._job is not None:
            self._job.__exit__()


def random_round(root: Path, seed: int) -> tuple[list[str], int]:
    """A trial with kills at random moments; what was found, and how many kills it had."""
    runner = InProcesses()
    with RunningGroup(root) as group:
        trial = Trial(group, Task(str(root / "query"), {}), runner, seed)
        try:
            found = trial.run(TRIAL_ROUNDS)
        finally:
            runner.close()
    print(f"random, seed {seed}: {trial.restarts} kills of the query, {trial.kills} of gateways, {len(found)} findings", flush=True)
    return found, trial.restarts + trial.kills + 1


def chain_round(root: Path, seed: int) -> tuple[list[str], int]:
    """Two jobs in a chain, with kills at random moments and around the sink's commit; what was found, and how many kills it had."""
    with RunningGroup(root) as group:
        found, kills = chain.trial(root, group, seed, CHAIN_ROUNDS, lambda _: None)
    print(f"chain, seed {seed}: {kills} kills of two jobs and of gateways, {len(found)} findings", flush=True)
    return found, kills


def main() -> int:
    """As the command line says."""
    parser = argparse.ArgumentParser(prog="python -m tests.faults.spark.soak", description=__doc__)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--victims", nargs="*", choices=list(matrix.VICTIMS), default=list(matrix.VICTIMS), help="only these")
    options = parser.parse_args()
    cells = [cell for cell in matrix.EVERY if cell.victim in options.victims]
    deadline = time.monotonic() + 60 * options.minutes
    rounds = kills = 0
    while rounds < 3 or time.monotonic() < deadline:
        seed = options.seed + rounds
        root = Path(tempfile.mkdtemp(prefix="tutti-spark-soak-"))
        try:
            if rounds % 3 == 1:
                found, killed = random_round(root, seed)
            elif rounds % 3 == 2:
                found, killed = chain_round(root, seed)
            else:
                found, killed = matrix_round(root, seed, list(cells)), len(cells)
        except AssertionError as error:
            found, killed = [str(error)], 0
        rounds += 1
        kills += killed
        if found:
            print("\n".join(found))
            print(f"spark-soak: FAILED with seed {seed} in round {rounds}; everything is in {root}")
            return 1
        shutil.rmtree(root)
    print(
        f"spark-soak: {kills} kills in {rounds} rounds, every attempt at every micro-batch gave the rows of the run without kills"
    )
    return 0


if __name__ == "__main__":
    os.environ.setdefault("SPARK_SCALA_VERSION", "2.13")  # a local cluster asks for it
    sys.exit(main())
