"""Spooled sending for `tutti produce --spool`: for an input that cannot be read again."""

from __future__ import annotations

import time
from contextlib import suppress
from types import TracebackType
from typing import TYPE_CHECKING, NamedTuple, Self

from tutti import limits
from tutti.errors import TuttiError
from tutti_gateway.cli.common.output import count_text
from tutti_gateway.cli.records.input_batches import Pieces, batch_of
from tutti_gateway.cli.records.inputs import Chunk

if TYPE_CHECKING:
    from tutti.batching.receipt import Receipt

_GRACE_S = limits.EXIT_FLUSH_US / 1e6
WAIT_S = limits.REQUEST_TIMEOUT_US / 1e6


class SpoolReport(NamedTuple):
    """Result of a run.

    `records` were read, and `safe` of them are committed or on disk. `in_spool` are on disk but not committed, including those of
    earlier runs. `refused`: records that this run dead-lettered. `complete`: True if the input was read to its end.
    """

    topic: str
    producer: str
    records: int
    safe: int
    in_spool: int
    refused: int
    first: int | None
    last: int | None
    seconds: float
    complete: bool = True
    lanes: None = None  # a spool has no unordered records

    def fields(self) -> dict[str, object]:
        """Return the JSON fields of the result."""
        return {name: value for name, value in self._asdict().items() if name != "lanes"}

    def sentence(self, *, wrong: bool = False) -> str:
        """Return the result as a sentence; `wrong` is True if the input cannot be sent as it is."""
        read = f"{count_text(self.records, 'record')} taken for {self.topic} in {self.seconds:.1f} s"
        if not self.complete:
            read += f" before it {'failed' if wrong else 'stopped'}"
        if self.safe < self.records:
            read += f"; {self.records - self.safe:,} of them were not on disk at the end, and are lost unless sent again"
        dead_letters = f"; {count_text(self.refused, 'record')} dead-lettered in the spool's folder refused" if self.refused else ""
        if not self.in_spool:
            return f"{read}; all are committed{dead_letters}"
        return f"{read}; {self.in_spool:,} are in the spool, and the next run with this spool sends them{dead_letters}"


class Spooling:
    """One run: `send` for each chunk, then `finish` or `cut_short`. A context manager; leaving it closes the producer."""

    def __init__(self, url: str, topic: str, name: str, spool: str, rate: float | None) -> None:
        """Open the spool; this step needs no gateway.

        Raises:
            TuttiError: the spool cannot be used.
        """
        from tutti.producer import Producer

        self._topic, self._name = topic, name
        self._producer = Producer(url, producer=name, spool=spool, delivery_timeout=WAIT_S)
        self._pieces = Pieces(rate)
        self._records = self._safe = 0
        self._first: Receipt | None = None
        self._last: Receipt | None = None
        self._begun_s = time.monotonic()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._producer.close()

    def send(self, chunk: Chunk) -> int:
        """Take the next records of the input and return their number; wait while the disk is slower than the input."""
        for part in self._pieces.of(chunk):
            batch = batch_of(part)
            self._last = self._producer.send_batch(self._topic, batch)
            self._first = self._first or self._last
            self._records += batch.num_rows
        return len(chunk.values)

    def finish(self) -> SpoolReport:
        """Wait until all records are on disk, and briefly for commits; return the result of the run.

        Raises:
            TuttiError: a record is not on disk, or was rejected.
        """
        if self._last is not None:
            self._last.spooled()
        self._safe = self._records
        self._producer.__exit__(None, None, None)  # raises the first rejection
        return self._report()

    def cut_short(self, wait_s: float) -> SpoolReport:
        """Return the result of a run that ended early, after waiting `wait_s` and a grace period for the disk."""
        with suppress(TuttiError, TimeoutError):
            if self._last is not None:
                self._last.spooled(wait_s + _GRACE_S)
            self._safe = self._records
        with suppress(TuttiError):
            self._producer.__exit__(TimeoutError, None, None)
        return self._report()._replace(complete=False)

    def _report(self) -> SpoolReport:
        spool, seconds = self._producer.spool, time.monotonic() - self._begun_s
        first, last = (receipt.offset if receipt is not None else None for receipt in (self._first, self._last))
        if last is not None and self._last is not None:
            last += self._last.count - 1
        return SpoolReport(self._topic, self._name, self._records, self._safe, spool.records, spool.refused, first, last, seconds)
