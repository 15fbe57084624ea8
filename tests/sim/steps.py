"""What a step costs: real stacks in memory, without network or disk, microseconds of each frame on each member.

As a program, `python -P tests/sim/steps.py MEMBERS ROUNDS FRAMES`, it imports nothing but `gateway` and prints its figures as JSON,
so that it measures any checkout that PYTHONPATH names (`against`).
"""

from __future__ import annotations

import gc
import json
import os
import subprocess
import sys
from collections import deque
from pathlib import Path
from random import Random
from time import perf_counter

from tutti.data.frames.frame import Frame, Kind
from tutti.data.hard_state import HardState
from tutti.data.log_state import LogState
from tutti_gateway.core.protocol.actions import Action, Persist, Reply, Send, SetTimer
from tutti_gateway.core.protocol.events import (
    EpochAsked,
    Event,
    Identity,
    Now,
    Persisted,
    Received,
    Recovered,
    Started,
    TimeAdvanced,
    TopicAsked,
    submitted,
)
from tutti_gateway.core.protocol.messages import Forward
from tutti_gateway.core.stack import Stack

BODY = bytes(100)
RUNS = (1, 64)  # frames of one submit; the next one follows when all of it is decided
SESSION = 1
US = 1_000_000


class Members:
    """Stacks that exchange messages at once.

    Attributes:
        spent: seconds in `step`, by member. replies: answers to the client so far.
    """

    def __init__(self, members: int) -> None:
        self._now_us = US
        self._queue: deque[tuple[int, Event]] = deque()
        self._timers: dict[int, int] = {}
        numbers = range(1, members + 1)
        self._stacks = {number: Stack(Random) for number in numbers}
        self._incarnations = {number: bytes([number]) * 16 for number in numbers}
        self.spent = dict.fromkeys(numbers, 0.0)
        self.replies = 0
        names = {f"g{number}": f"g{number}:7400" for number in numbers}
        for number in numbers:
            identity = Identity(f"g{number}", self._incarnations[number], "steps", names)
            recovered = Recovered(b"", HardState(), LogState(), ())
            self._queue.append((number, Started(identity, bytes([number]) * 16, recovered)))
        self.run()
        self.origin = min(2, members)  # while the first one coordinates
        self._sequence = 0
        while not self.replies:
            self.pass_time()
            self._queue.append((self.origin, TopicAsked(SESSION, 1, "topic")))
            self.run()
        self._queue.append((self.origin, EpochAsked(SESSION, 2, "p", b"p" * 16, 1)))
        self.run()

    def pass_time(self) -> None:
        """Let the timers come due."""
        self._now_us = max(self._now_us, *self._timers.values())
        self._queue.extend((number, TimeAdvanced()) for number in self._timers)
        self._timers = {}
        self.run()

    def run(self) -> None:
        """Carry out everything that follows."""
        queue, stacks, spent = self._queue, self._stacks, self.spent
        while queue:
            number, event = queue.popleft()
            self._now_us += 1
            now = Now(self._now_us, self._now_us)
            step = stacks[number].step
            began = perf_counter()
            actions = step(event, now)
            spent[number] += perf_counter() - began
            for action in actions:
                self._carry_out(number, action)

    def _carry_out(self, number: int, action: Action) -> None:
        if isinstance(action, Send):
            message = action.message
            if isinstance(message, Forward):
                message = Forward(message.view, tuple([frame.unstamped() for frame in message.frames]))
            self._queue.append((action.to, Received(number, message, self._incarnations[number])))
        elif isinstance(action, Persist):
            self._queue.append((number, Persisted(action.token)))
        elif isinstance(action, Reply):
            self.replies += sum(not hasattr(answer, "code") for answer in action.answers)
        elif isinstance(action, SetTimer):
            self._timers[number] = action.at_us

    def load(self, frames: int, run: int) -> None:
        """So many frames, in submits of `run`, one at a time; everything is decided at the end."""
        submits = [
            submitted(SESSION, tuple([_frame(sequence) for sequence in range(first, first + run)]))
            for first in range(self._sequence + 1, self._sequence + frames + 1, run)
        ]
        self._sequence += len(submits) * run
        replies = self.replies
        for submit in submits:
            self._queue.append((self.origin, submit))
            self.run()
        if self.replies != replies + len(submits) * run:
            raise RuntimeError(f"{self.replies - replies} answers to {len(submits) * run} frames")


def _frame(sequence: int) -> Frame:
    return Frame(Kind.BATCH, BODY, producer=1, epoch=1, first_sequence=sequence, count=1, topic=1)


def measure(members: int, rounds: int, frames: int) -> dict[str, dict[str, float]]:
    """Microseconds a frame, by frames of a submit and by role: the best of several rounds, as whatever disturbs one adds to it."""
    group = Members(members)
    best: dict[str, dict[str, float]] = {}
    roles = {1: "coordinator", 2: "origin", 3: "member"}
    for run in RUNS:
        frames -= frames % run
        group.load(frames, run)
        found = best.setdefault(str(run), {})
        for _ in range(rounds):
            gc.collect()
            group.spent.update(dict.fromkeys(group.spent, 0.0))
            group.load(frames, run)
            for number, seconds in group.spent.items():
                us = seconds * US / frames
                found[roles[number]] = min(us, found.get(roles[number], us))
    return best


def _elsewhere(checkout: Path, rounds: int, frames: int) -> dict[str, dict[str, float]]:
    command = [sys.executable, "-P", __file__, "1", str(rounds), str(frames)]
    environment = {**os.environ, "PYTHONPATH": str(checkout)}
    done = subprocess.run(command, env=environment, check=True, capture_output=True, text=True, timeout=300)
    found: dict[str, dict[str, float]] = json.loads(done.stdout)
    return found


def against(checkout: Path, pairs: int, rounds: int, frames: int) -> dict[str, tuple[float, float]]:
    """A group of one here and in another checkout, in turns, each in a process of its own: the best of each, by submit."""
    here = Path(__file__).parents[2]
    found = [(_elsewhere(here, rounds, frames), _elsewhere(checkout, rounds, frames)) for _ in range(pairs)]
    return {
        str(run): (
            min(ours[str(run)]["coordinator"] for ours, _ in found),
            min(theirs[str(run)]["coordinator"] for _, theirs in found),
        )
        for run in RUNS
    }


if __name__ == "__main__":
    print(json.dumps(measure(*[int(argument) for argument in sys.argv[1:]])))
