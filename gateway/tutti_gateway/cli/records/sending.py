"""Exactly-once sending for `tutti produce`.

Each batch carries progress: the count and the hash of the input up to its last record. A run under a known name asks for the last
committed progress and reads that many records without sending. It continues only if their hash is equal. After an abort, the run
does the same with the batches that it still holds.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, NamedTuple, Self

import orjson
import pyarrow as pa

from tutti.data.client_protocol import OFFSET_UNKNOWN
from tutti.errors import Aborted, Fenced, TuttiError, Unavailable, Unknown
from tutti_gateway.cli.common.output import count_text
from tutti_gateway.cli.records.input_batches import Pieces, batch_of
from tutti_gateway.cli.records.inputs import Chunk, InputHash
from tutti_gateway.core import limits

if TYPE_CHECKING:
    from tutti.batching.receipt import Receipt

RECEIPT_WAIT_S = 130.0
#: Number of record ranges that a sentence lists; the JSON report has all of them.
_RANGES_SHOWN_MAX = 8
_PROGRAM = "tutti produce"


def _is_not_receipt_error(record: logging.LogRecord) -> bool:
    """True if the log record is not the `Unknown` error of a receipt, which the command reports at its end."""
    return not (isinstance(record.args, tuple) and len(record.args) == 1 and isinstance(record.args[0], Unknown))


#: First and last number of consecutive records in the input, from 1.
Run = tuple[int, int]


class InputChanged(TuttiError):
    """The input differs from the one that was committed under the same producer name."""


class Report(NamedTuple):
    """Committed records of a run. `first` and `last` are their offsets; None if nothing is committed, or the offset is unknown.

    `complete`: True if all of the input is committed. `undecided`: number of sent records with unknown outcome. `lanes`: for
    unordered records, the first and the last offset in each lane; None for ordered ones.

    For a run that ended early, by record numbers of the input: `undecided_records` are those of `undecided`, `uncommitted_records`
    are in no log although later ones may be, and from `uncommitted_from` on no record is in a log. All others are committed. With
    unordered records the committed ones need not be a prefix of the input, because one lane may fail while another continues.
    """

    topic: str
    producer: str | None
    records: int
    skipped: int
    first: int | None
    last: int | None
    seconds: float
    complete: bool = True
    undecided: int = 0
    lanes: dict[str, tuple[int, int]] | None = None
    undecided_records: Sequence[Run] = ()
    uncommitted_records: Sequence[Run] = ()
    uncommitted_from: int | None = None

    def fields(self) -> dict[str, object]:
        """Return the JSON fields of the report."""
        return {name: value for name, value in self._asdict().items() if name != "lanes" or value is not None}

    def sentence(self, *, wrong: bool = False) -> str:
        """Return the report as a sentence; `wrong` is True if the input cannot be sent as it is."""
        before = f"; {self.skipped:,} {_were(self.skipped)} committed before" if self.skipped else ""
        if not self.complete:
            return self._cut_short(before, wrong)
        if not self.records:
            return f"nothing to send to {self.topic}{before}"
        speed = f" in {self.seconds:.1f} s ({self.records / self.seconds:,.0f} a second)" if self.seconds > 0 else ""
        return f"{count_text(self.records, 'record')} committed to {self.topic}{speed}{before}"

    def _cut_short(self, before: str, wrong: bool) -> str:
        correct = "correct the input and " if wrong else ""
        undecided = f"; the outcome of {self.undecided:,} more is unknown" if self.undecided else ""
        if self.producer is not None:
            hint = f"{correct}run it again with the same --producer, which continues after them"
        elif self.records or self.undecided:
            name = "; with --producer NAME, a run can continue after an early end" if self.lanes is None else ""
            hint = f"another run sends them again: {correct}send only the rest, {self._uncommitted_text()}{name}"
        else:
            hint = f"{correct}run it again"
        return f"{count_text(self.records, 'record')} committed to {self.topic} before it stopped{undecided}{before}: {hint}"

    def _uncommitted_text(self) -> str:
        """Return which records of the input are not committed, or may not be."""
        failed = f"{_ranges_text(self.uncommitted_records)} and " if self.uncommitted_records else ""
        unknown = (
            f"; the outcome of {_ranges_text(self.undecided_records)} is unknown, check these first"
            if self.undecided_records
            else ""
        )
        return f"that is {failed}all from record {self.uncommitted_from} of the input, counted from 1{unknown}"


def _ranges_text(runs: Sequence[Run]) -> str:
    """Return ranges of record numbers as text, for example "records 3-5, 9-9"."""
    left = len(runs) - _RANGES_SHOWN_MAX
    more = f" and {count_text(left, 'range')} more (--json has all)" if left > 0 else ""
    return "records " + ", ".join(f"{first}-{last}" for first, last in runs[:_RANGES_SHOWN_MAX]) + more


def _merged(runs: Iterable[Run]) -> list[Run]:
    """Merge adjacent ranges. `runs` must be sorted."""
    joined: list[Run] = []
    for first, last in runs:
        if joined and joined[-1][1] + 1 == first:
            joined[-1] = joined[-1][0], last
        else:
            joined.append((first, last))
    return joined


def _were(count: int) -> str:
    return "was" if count == 1 else "were"


@dataclass(slots=True)
class _InFlight:
    """A batch in flight, and the input number of its last record.

    `handed`: True if the producer was asked to send the batch and did not refuse. Ctrl-C may arrive after sending and before the
    receipt is assigned.
    """

    last: int
    batch: pa.RecordBatch
    progress: bytes
    receipt: Receipt | None = None
    handed: bool = False

    @property
    def run(self) -> Run:
        """Return the first and last input number of the batch's records."""
        return self.last - self.batch.num_rows + 1, self.last


class Sending:
    """One run: `send` for each chunk, then `finish`. A context manager; leaving it closes the producer."""

    def __init__(
        self, url: str, topic: str, name: str | None, *, settings: str, rate: float | None, unordered: bool = False
    ) -> None:
        """Connect to a gateway.

        Args:
            url: gateways.
            topic: topic of the records.
            name: the producer's name, None for a random name.
            settings: how the input is read; other settings make the same bytes a different input.
            rate: records a second, None for no limit.
            unordered: send to lanes; earlier runs are then unknown.

        Raises:
            InputChanged: another program used the name.
            Unavailable: no gateway answers.
        """
        from tutti.producer import Producer

        logging.getLogger("tutti.client").addFilter(_is_not_receipt_error)
        self._topic, self._name = topic, name
        self._producer = Producer(url, producer=name)
        self._hash = InputHash(settings)
        self._in_flight: deque[_InFlight] = deque()
        self._skipped = 0
        self._committed_now = 0
        self._committed_to = 0  # all input records up to this number are committed
        self._aborts = 0
        self._first: int | None = None
        self._last: int | None = None
        self._pieces = Pieces(rate)
        self._lanes: dict[str, tuple[int, int]] | None = {} if unordered else None
        self._started_s = time.monotonic()
        self._committed, self._digest = self._resume() if not unordered else (0, "")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if kind is None:
            self._producer.close()  # every receipt was checked
        else:
            self._producer.__exit__(kind, error, trace)

    def send(self, chunk: Chunk) -> int:
        """Send the next records of the input except those committed before; return the number of records in the chunk."""
        for part in self._pieces.of(self._skip(chunk)):
            self._send_part(part)
        return len(chunk.values)

    def finish(self) -> Report:
        """Wait for the last receipt, and return the report of the run.

        Raises:
            InputChanged: the input is shorter than the input committed under its name.
            Unavailable: no gateway answered within the delivery timeout of a record.
        """
        if self._hash.count < self._committed:
            raise InputChanged(
                f"the input has {count_text(self._hash.count, 'record')}, but {self._committed:,} {_were(self._committed)} "
                f"committed "
                f"earlier by producer {self._name!r}: send the same input again, or choose another --producer"
            )
        while self._in_flight:
            self._take_receipt()
        return self._report()

    def cut_short(self, wait_s: float) -> Report:
        """Return the committed records of a run that ended early.

        Batches in flight get `wait_s` seconds, and then the time that closing a producer allows. Nothing is sent afterwards.
        """
        deadline_s = time.monotonic() + wait_s
        for held in self._in_flight:
            if held.receipt is not None:
                with suppress(TuttiError, TimeoutError):
                    held.receipt.result(timeout=max(0.0, deadline_s - time.monotonic()))
        self.__exit__(TimeoutError, None, None)
        undecided: list[Run] = []
        failed: list[Run] = []
        reached = self._committed_to
        for held in self._in_flight:
            if held.last <= self._committed_to:
                continue  # Ctrl-C arrived before the batch was released
            try:
                if held.receipt is None:
                    (undecided if held.handed else failed).append(held.run)
                    continue
                self._record_commit(held, held.receipt.result(timeout=0.0))
            except (Unknown, Fenced, TimeoutError):
                if held.receipt is None or not held.receipt.left:
                    failed.append(held.run)
                    continue
                undecided.append(held.run)
            except TuttiError:
                failed.append(held.run)  # the record is in no log
                continue
            reached = held.last
        return self._report()._replace(
            complete=False,
            undecided=sum(last - first + 1 for first, last in undecided),
            undecided_records=_merged(undecided),
            uncommitted_records=_merged(run for run in failed if run[1] < reached),
            uncommitted_from=reached + 1,
        )

    def _report(self) -> Report:
        seconds = time.monotonic() - self._started_s
        return Report(
            self._topic, self._name, self._committed_now, self._skipped, self._first, self._last, seconds, lanes=self._lanes
        )

    def _resume(self) -> tuple[int, str]:
        """Return the number of records committed so far, and the hash of the input up to there."""
        sequence, progress = self._producer.resume()
        if sequence == 0:
            return 0, ""
        try:
            saved = orjson.loads(progress or b"null")
        except orjson.JSONDecodeError:
            saved = None
        if not isinstance(saved, dict) or saved.get("program") != _PROGRAM or saved.get("count") != sequence:
            raise InputChanged(
                f"producer {self._name!r} has sent {count_text(sequence, 'record')} through another program than `tutti produce`: "
                "choose another --producer"
            )
        return sequence, str(saved.get("sha256"))

    def _skip(self, chunk: Chunk) -> Chunk:
        """Return the records of the chunk that were not committed before; check that the others are unchanged."""
        missing = self._committed - self._hash.count
        if missing <= 0:
            return chunk
        known, rest = chunk.cut(missing)
        self._hash.add(known.values)
        self._skipped += len(known.values)
        self._committed_to = self._hash.count
        if self._hash.count == self._committed and self._hash.hexdigest() != self._digest:
            raise InputChanged(
                f"the input does not begin with the {count_text(self._committed, 'record')} that producer {self._name!r} has "
                "committed (or --topic, --format or --key differs): send the same input again, or choose another --producer"
            )
        return rest

    def _send_part(self, part: Chunk) -> None:
        self._hash.add(part.values)
        batch = batch_of(part)
        progress = orjson.dumps({"program": _PROGRAM, "count": self._hash.count, "sha256": self._hash.hexdigest()})
        while len(self._in_flight) >= limits.PRODUCE_BATCHES_MAX:
            self._take_receipt()
        self._in_flight.append(_InFlight(self._hash.count, batch, progress))
        try:
            self._transmit(self._in_flight[-1])
        except Aborted:
            self._send_again()

    def _transmit(self, held: _InFlight) -> None:
        held.receipt, held.handed = None, True
        try:
            if self._lanes is not None:
                held.receipt = self._producer.send_batch(self._topic, held.batch, ordering="unordered")
            else:
                held.receipt = self._producer.send_batch(self._topic, held.batch, progress=held.progress)
        except TuttiError:
            held.handed = False
            raise

    def _take_receipt(self) -> None:
        """Wait for the oldest batch; after an abort, resend the batches that did not commit."""
        oldest = self._in_flight[0]
        try:
            offset = oldest.receipt.result(timeout=RECEIPT_WAIT_S) if oldest.receipt is not None else OFFSET_UNKNOWN
        except Aborted:
            if self._aborts >= limits.PRODUCE_ABORTS_MAX or self._lanes is not None:
                raise
            self._send_again()
            return
        except Unknown as error:
            raise Unavailable(str(error)) from error
        self._aborts = 0
        self._record_commit(oldest, offset)
        self._committed_to = oldest.last
        self._in_flight.popleft()

    def _record_commit(self, held: _InFlight, offset: int) -> None:
        """Record a batch as committed."""
        self._committed_now += held.batch.num_rows
        if offset != OFFSET_UNKNOWN and self._lanes is not None and held.receipt is not None:
            first, last = self._lanes.get(held.receipt.lane, (offset, 0))
            self._lanes[held.receipt.lane] = first, max(last, offset + held.batch.num_rows - 1)
        elif offset != OFFSET_UNKNOWN:  # otherwise the offset is no longer known
            self._first = offset if self._first is None else self._first
            self._last = offset + held.batch.num_rows - 1

    def _send_again(self) -> None:
        """Resend, in order, the batches after the last committed sequence."""
        while True:
            self._aborts += 1
            sequence, _ = self._producer.resume()
            try:
                for held in self._in_flight:
                    if held.last > sequence:
                        self._transmit(held)
            except Aborted:
                if self._aborts >= limits.PRODUCE_ABORTS_MAX:
                    raise
            else:
                return
