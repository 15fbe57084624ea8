"""A producer process: `python -m tests.faults.group.producer URL NAME KIND JOURNAL RATE`.

KIND is `plain`, `narrow` (hardly anything may be on its way), `progress` (it copies a source: after a failure or a restart it
goes on where `resume` says), `unordered` or `both` (now ordered, now unordered). It sends until standard input ends and writes down
what it is told; what it sends unordered in a journal beside JOURNAL (`lanes_journal`). It ends with 0 when all was answered.
"""

from __future__ import annotations

import random
import select
import sys
import time
from pathlib import Path
from typing import Any

from tests.faults.group.journal import BESIDE, Writer, lanes_journal, read_story, value_of
from tutti import Producer
from tutti.errors import Aborted, Fenced, TuttiError

TOPIC = "faults"
FLUSH_WAIT_S = 90.0
KINDS: dict[str, dict[str, Any]] = {
    "plain": {},
    "narrow": {"buffer_bytes": 65_536, "batch_bytes": 1024},
    "progress": {},
    "unordered": {},
    "both": {},
}
#: Kind -> how often it sends unordered.
UNORDERED = {"unordered": 1.0, "both": 0.5}


class Beside:
    """Sends unordered, and writes that down."""

    def __init__(self, producer: Producer, name: str, path: Path) -> None:
        """Go on where an earlier life ended."""
        self._producer = producer
        self._name = BESIDE + name
        self._use = max(read_story(self._name, path, unordered=True).uses, default=0)
        self._journal = Writer(path)
        self._journal.note("b", time.monotonic_ns(), 0, 0)

    def send(self) -> None:
        """Send the next record."""
        self._use += 1
        use = self._use

        def told(error: TuttiError | None, receipt: Any) -> None:
            now = time.monotonic_ns()
            if error is None:
                self._journal.note("c", use, receipt.result(0), now, receipt.lane)
            else:
                nowhere = isinstance(error, Aborted) or "in no lane" in str(error)
                self._journal.note("a" if nowhere else "f" if isinstance(error, Fenced) else "u", use, now)

        self._journal.note("s", use, use, time.monotonic_ns())
        self._producer.send(TOPIC, value_of(self._name, use, use), on_delivery=told, ordering="unordered")

    def close(self) -> None:
        """All was answered."""
        self._journal.note("e", time.monotonic_ns())
        self._journal.close()


class Worker:
    """Sends and writes down."""

    def __init__(self, url: str, name: str, kind: str, path: Path) -> None:
        """Open the producer and go on where it ended."""
        self._name = name
        self._progress = kind == "progress"
        told = read_story(name, path)
        self._use = max(told.uses, default=0)
        self._journal = Writer(path)
        self._producer = Producer(url, producer=name, delivery_timeout=FLUSH_WAIT_S, connect_timeout=FLUSH_WAIT_S, **KINDS[kind])
        self._place = self._resume("b")
        self._unordered = UNORDERED.get(kind, 0.0)
        self._beside = Beside(self._producer, name, lanes_journal(path)) if self._unordered else None

    def _resume(self, kind: str) -> int:
        self._failed = False
        sequence, progress = self._producer.resume(FLUSH_WAIT_S)
        place = int(progress or b"0")
        self._journal.note(kind, time.monotonic_ns(), sequence, place)
        return place if self._progress else sequence

    def send(self) -> None:
        """Send the next record; of a source that is copied, the one behind what is committed when something failed."""
        if self._failed and self._progress:
            self._place = self._resume("r")
        self._use += 1
        use, place = self._use, self._place + 1

        def told(error: TuttiError | None, receipt: Any) -> None:
            now = time.monotonic_ns()
            if error is None:
                self._journal.note("c", use, receipt.result(0), now)
            else:
                self._failed = True
                kind = "a" if isinstance(error, Aborted) else "f" if isinstance(error, Fenced) else "u"
                self._journal.note(kind, use, now)

        value = value_of(self._name, use, place)
        progress = b"%d" % place if self._progress else None
        self._journal.note("s", use, place, time.monotonic_ns())
        try:
            self._producer.send(TOPIC, value, progress=progress, on_delivery=told)
        except Aborted:
            self._journal.note("a", use, time.monotonic_ns())  # refused at the door: an abort stopped the producer
            self._place = self._resume("r")
            return
        self._place = place

    def run(self, rate: float) -> int:
        """Send `rate` records a second, in bursts of random size, until told to stop; then wait for every answer."""
        while not select.select([sys.stdin], [], [], 0)[0]:
            burst = random.choice((1, 1, 2, 5, 20))
            beside = self._beside if random.random() < self._unordered else None
            for _ in range(burst):
                (beside or self).send()
            time.sleep(random.expovariate(rate / burst))
        left = self._producer.flush(FLUSH_WAIT_S)
        self._producer.close()
        if self._beside is not None:
            self._beside.close()
        self._journal.note("e", time.monotonic_ns())
        self._journal.close()
        return 1 if left else 0


def main() -> int:
    """As the command line says."""
    url, name, kind, journal, rate = sys.argv[1:]
    return Worker(url, name, kind, Path(journal)).run(float(rate))


if __name__ == "__main__":
    sys.exit(main())
