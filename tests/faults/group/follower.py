"""A reader process: `python -m tests.faults.group.follower JOURNAL URL...` or `... --once JOURNAL URL...`.

For each url a reader follows the log from its beginning, another one all lanes, and somebody asks for the frontier again and
again, each with one connection's memory for all their life; the journals are `JOURNAL.0`, `JOURNAL.1`, ... It ends when standard
input does. With `--once` the log and the lanes are read up to their frontiers, once, beginning at each url's gateway.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa

from tests.faults.group.journal import BLOCK, COLUMNS, Writer, digest_of
from tutti import Reader
from tutti.data.scan_request import ScanRequest
from tutti.errors import OffsetOutOfRange, TuttiError
from tutti.sources.flight import FlightSource

PATIENCE_S = 3600.0
LOOK_S = 0.05


class Blocks:
    """Sums up what is read in blocks, so that any two who read the same can be compared; `lane` if it is read from one."""

    def __init__(self, journal: Writer, lane: str = "") -> None:
        """Nothing was read yet."""
        self._journal = journal
        self._behind = (lane,) if lane else ()
        self._rows: list[tuple[Any, ...]] = []

    def take(self, batch: pa.RecordBatch) -> None:
        """Some more records."""
        for row in zip(*(batch.column(name).to_pylist() for name in COLUMNS), strict=True):
            self._rows.append(row)
            if (row[0] + 1) % BLOCK == 0:
                self.flush()

    def flush(self) -> None:
        """Write down what is not yet."""
        if self._rows:
            self._journal.note("q", self._rows[0][0], self._rows[-1][0] + 1, digest_of(self._rows), *self._behind)
            self._rows = []


def follow(url: str, journal: Writer, stop: threading.Event) -> None:
    """Read all that is committed, until told to stop."""
    blocks = Blocks(journal)
    with Reader(url, start=0, follow=True, connect_timeout=60.0, patience=PATIENCE_S) as reader:
        while not stop.is_set():
            batch = reader.poll(0.5)
            if batch is not None:
                blocks.take(batch)
        blocks.flush()


class LaneBlocks:
    """Sums up what a reader of all lanes reads, lane by lane."""

    def __init__(self, journal: Writer) -> None:
        """Nothing was read yet."""
        self._journal = journal
        self._blocks: dict[str, Blocks] = {}

    def take(self, batch: pa.RecordBatch, lane: str) -> None:
        """Some more records of a lane."""
        self._blocks.setdefault(lane, Blocks(self._journal, lane)).take(batch)

    def flush(self) -> None:
        """Write down what is not yet."""
        for blocks in self._blocks.values():
            blocks.flush()


def follow_lanes(url: str, journal: Writer, stop: threading.Event) -> None:
    """Read all that is committed in the lanes, also in those that begin meanwhile, until told to stop."""
    blocks = LaneBlocks(journal)
    with Reader(url, ordering="unordered", follow=True, connect_timeout=60.0, patience=PATIENCE_S) as reader:
        while not stop.is_set():
            batch = reader.poll(0.5)
            if batch is not None:
                blocks.take(batch, reader.lane)
        blocks.flush()


def look(url: str, journal: Writer, stop: threading.Event) -> None:
    """Ask for the frontier again and again."""
    journal.note("n", time.monotonic_ns())
    with FlightSource(url, timeout=1.0, patience=1.0) as reads:
        while not stop.wait(LOOK_S):
            try:
                told = reads.frontier()
            except TuttiError:
                continue  # nobody answered: it asks again, and remembers what it was shown
            journal.note("f", told.offset, told.state, time.monotonic_ns())


def _committed(reads: FlightSource) -> Iterator[pa.RecordBatch]:
    """All that is committed now; where its first records go before they are asked for, what is left of it."""
    while True:
        frontier, begun = reads.frontier(), False
        try:
            for found in reads.scan(ScanRequest(frontier.start, frontier.offset, columns=COLUMNS)):
                begun = True
                yield found.batch
        except OffsetOutOfRange:
            if begun or reads.frontier().start <= frontier.start:
                raise
        else:
            return


def once(url: str, journal: Writer) -> None:
    """Read what is committed now, in the log and in the lanes."""
    blocks = Blocks(journal)
    with FlightSource(url) as reads:
        for batch in _committed(reads):
            blocks.take(batch)
    blocks.flush()
    lanes = LaneBlocks(journal)
    with Reader(url, ordering="unordered") as reader:
        for batch in reader:
            lanes.take(batch, reader.lane)
    lanes.flush()


def journals(base: str, urls: Iterable[str]) -> list[tuple[str, Writer]]:
    """Each url with its journal."""
    return [(url, Writer(Path(f"{base}.{number}"))) for number, url in enumerate(urls)]


def main() -> int:
    """As the command line says."""
    arguments = sys.argv[1:]
    if arguments[0] == "--once":
        for url, journal in journals(arguments[1], arguments[2:]):
            once(url, journal)
        return 0
    stop = threading.Event()
    broken: list[str] = []

    def guarded(work: Any, url: str, journal: Writer) -> None:
        try:
            work(url, journal, stop)
        except Exception as error:  # noqa: BLE001 - told at the end, and the process fails by it
            broken.append(f"{work.__name__} {url}: {type(error).__name__}: {error}")

    threads = [
        threading.Thread(target=guarded, args=(work, url, journal))
        for url, journal in journals(arguments[0], arguments[1:])
        for work in (follow, follow_lanes, look)
    ]
    for thread in threads:
        thread.start()
    sys.stdin.read()
    stop.set()
    for thread in threads:
        thread.join()
    print("\n".join(broken), file=sys.stderr)
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
