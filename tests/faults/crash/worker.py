"""A producer process of the crash tests: `python -m tests.faults.crash.worker URL NAME WITNESS SECONDS RATE`.

It sends numbered records under a fixed name until its time is over or standard input ends, and writes down what it is told. Started
again after a kill it goes on behind what was committed, as `resume` says. It ends with 0 when everything it sent was answered.
"""

from __future__ import annotations

import random
import select
import sys
import threading
import time
from pathlib import Path
from typing import TextIO

from tests.faults.crash.checker import value_of
from tests.faults.crash.witness import read_witness
from tutti import Producer
from tutti.errors import Aborted, TuttiError

TOPIC = "crash"
FLUSH_WAIT_S = 90.0


class Worker:
    """Sends and writes down."""

    def __init__(self, url: str, name: str, witness: Path, rate: float) -> None:
        """Open the producer and go on where it ended."""
        self._name = name
        self._rate = rate
        self._lock = threading.Lock()
        self._out: TextIO = witness.open("a", encoding="ascii")
        self._producer = Producer(url, producer=name, delivery_timeout=FLUSH_WAIT_S, connect_timeout=FLUSH_WAIT_S)
        self._next = self._producer.resume()[0] + 1
        known = read_witness(name, witness)
        if known.committed and max(known.committed) >= self._next:
            raise SystemExit(f"{name}: {max(known.committed)} was acknowledged, but resume() returned {self._next - 1}")

    def _note(self, line: str) -> None:
        with self._lock:
            self._out.write(line + "\n")
            self._out.flush()

    def send(self) -> None:
        """Send the next record."""
        number = self._next
        self._next += 1
        self._note(f"s {number} {time.monotonic_ns()}")

        def told(error: TuttiError | None, receipt: object) -> None:
            if error is None:
                self._note(f"c {number} {receipt.result(0)} {time.monotonic_ns()}")  # type: ignore[attr-defined]  # a Receipt
            else:
                self._note(f"{'a' if isinstance(error, Aborted) else 'u'} {number}")

        self._producer.send(TOPIC, value_of(self._name, number), on_delivery=told)

    def run(self, seconds: float) -> int:
        """Send for so long, in bursts of random size; then wait for every answer."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline and not select.select([sys.stdin], [], [], 0)[0]:
            burst = random.choice((1, 1, 2, 5, 50))
            for _ in range(burst):
                self.send()
            time.sleep(random.expovariate(self._rate / burst))
        left = self._producer.flush(FLUSH_WAIT_S)
        self._producer.close()
        self._out.close()
        return 0 if not left else 1


def main() -> int:
    """As the command line says."""
    url, name, witness, seconds, rate = sys.argv[1:]
    return Worker(url, name, Path(witness), float(rate)).run(float(seconds))


if __name__ == "__main__":
    sys.exit(main())
