"""Sends an input's records exactly once: what `tutti produce` does between reading and reporting.

Every batch carries as progress the count and the hash of the input up to its last record. A run under a name that was used before
asks for the last committed progress, reads that many records again without sending, and goes on only if their hash is the same.
After an abort it does the same with the batches that it still holds.
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
from tutti_gateway.cli.common.output import counted
from tutti_gateway.cli.records.input_batches import Pieces, batch_of
from tutti_gateway.cli.records.inputs import Chunk, InputHash
from tutti_gateway.core import limits

if TYPE_CHECKING:
    from tutti.batching.receipt import Receipt

RECEIPT_WAIT_S = 130.0
#: Runs of records that a sentence names; JSON has all.
_RUNS_NAMED_MAX = 8
_PROGRAM = "tutti produce"


def _told_by_no_receipt(record: logging.LogRecord) -> bool:
    """Whether a line of the client's log says more than an error that the receipts raise, which the command ends with."""
    return not (isinstance(record.args, tuple) and len(record.args) == 1 and isinstance(record.args[0], Unknown))


#: The first and the last of records that follow each other, by their numbers in the input, from 1.
Run = tuple[int, int]


class InputChanged(TuttiError):
    """The input is not the one that was committed under the same name before."""


class Report(NamedTuple):
    """What a run committed. Offsets are those of its first and its last record; None when there is none, or they are not known.

    `complete`: all of the input is committed. `undecided`: so many records were sent, and whether they commit is not known.
    `lanes`: of unordered records the first and the last offset in each lane, as offsets are of a lane; None of ordered ones.

    Of a run that was cut short, by the numbers of the input's records: `undecided_records` are those of `undecided`,
    `uncommitted_records` those in no log though later ones may be, and of those from `uncommitted_from` on none is in a log.
    All others are committed: these are no prefix of the input when records are unordered, as one lane may fail and another go on.
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
        """For JSON."""
        return {name: value for name, value in self._asdict().items() if name != "lanes" or value is not None}

    def sentence(self, *, wrong: bool = False) -> str:
        """For people; `wrong` says that the input cannot be sent as it is."""
        before = f"; {self.skipped:,} {_were(self.skipped)} committed before" if self.skipped else ""
        if not self.complete:
            return self._cut_short(before, wrong)
        if not self.records:
            return f"nothing to send to {self.topic}{before}"
        speed = f" in {self.seconds:.1f} s ({self.records / self.seconds:,.0f} a second)" if self.seconds > 0 else ""
        return f"{counted(self.records, 'record')} committed to {self.topic}{speed}{before}"

    def _cut_short(self, before: str, wrong: bool) -> str:
        mend = "mend the input and " if wrong else ""
        open_ones = f"; of {self.undecided:,} more it is not known" if self.undecided else ""
        if self.producer is not None:
            hint = f"{mend}run it again with the same --producer, which goes on behind them"
        elif self.records or self.undecided:
            name = ", and with --producer NAME a run can go on where one stopped" if self.lanes is None else ""
            hint = f"another run sends them again: {mend}send the rest alone, {self._the_rest()}{name}"
        else:
            hint = f"{mend}run it again"
        return f"{counted(self.records, 'record')} committed to {self.topic} before it stopped{open_ones}{before}: {hint}"

    def _the_rest(self) -> str:
        """Which records of the input are not committed, or may not be."""
        failed = f"{_listed(self.uncommitted_records)} and " if self.uncommitted_records else ""
        unknown = f"; not known are {_listed(self.undecided_records)}, look for these first" if self.undecided_records else ""
        return f"which is {failed}from record {self.uncommitted_from} of the input on, counted from 1{unknown}"


def _listed(runs: Sequence[Run]) -> str:
    """Records of the input by their numbers: records 3-5, 9-9."""
    left = len(runs) - _RUNS_NAMED_MAX
    more = f" and {counted(left, 'run')} more (--json has all)" if left > 0 else ""
    return "records " + ", ".join(f"{first}-{last}" for first, last in runs[:_RUNS_NAMED_MAX]) + more


def _joined(runs: Iterable[Run]) -> list[Run]:
    """The same records in as few runs as they make. `runs` stand in order."""
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
class _Held:
    """A batch on its way, and the number of its last record in the input.

    `handed`: the producer was asked to send it, and did not refuse. Ctrl-C may strike when it has left and there is no receipt yet.
    """

    last: int
    batch: pa.RecordBatch
    progress: bytes
    receipt: Receipt | None = None
    handed: bool = False

    @property
    def run(self) -> Run:
        """The numbers of its records in the input."""
        return self.last - self.batch.num_rows + 1, self.last


class Sending:
    """One run: `send` chunk by chunk, then `finish`. A context manager; leaving it closes the producer."""

    def __init__(
        self, url: str, topic: str, name: str | None, *, settings: str, rate: float | None, unordered: bool = False
    ) -> None:
        """Connect.

        Args:
            url: gateways.
            topic: where to.
            name: the producer's name, None for one of its own.
            settings: how the input is read; other settings make another input of the same bytes.
            rate: records a second, None for as many as go.
            unordered: into lanes; nothing is known of runs before then.

        Raises:
            InputChanged: the name was used by another program.
            Unavailable: no gateway answers.
        """
        from tutti.producer import Producer

        logging.getLogger("tutti.client").addFilter(_told_by_no_receipt)
        self._topic, self._name = topic, name
        self._producer = Producer(url, producer=name)
        self._hash = InputHash(settings)
        self._held: deque[_Held] = deque()
        self._skipped = 0
        self._landed = 0
        self._passed = 0  # all records of the input up to this number are committed
        self._aborts = 0
        self._first: int | None = None
        self._last: int | None = None
        self._pieces = Pieces(rate)
        self._lanes: dict[str, tuple[int, int]] | None = {} if unordered else None
        self._begun_s = time.monotonic()
        self._committed, self._digest = self._resume() if not unordered else (0, "")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if kind is None:
            self._producer.close()  # every outcome was looked at
        else:
            self._producer.__exit__(kind, error, trace)

    def send(self, chunk: Chunk) -> int:
        """Send the next records of the input, less what was committed before; how many records the chunk has."""
        for part in self._pieces.of(self._skip(chunk)):
            self._send_part(part)
        return len(chunk.values)

    def finish(self) -> Report:
        """Wait for the last receipt; what the run did.

        Raises:
            InputChanged: the input ended before what was committed under its name.
            Unavailable: no gateway answered for as long as a record waits for its outcome.
        """
        if self._hash.count < self._committed:
            raise InputChanged(
                f"the input has {counted(self._hash.count, 'record')} and {self._committed:,} {_were(self._committed)} committed "
                f"by producer {self._name!r} before: send the same input again, or choose another --producer"
            )
        while self._held:
            self._take_receipt()
        return self._report()

    def cut_short(self, wait_s: float) -> Report:
        """What a run that something ended has committed. What is on its way is waited for, `wait_s` at most, and then as a producer
        does that is closed; nothing leaves afterwards.
        """
        deadline_s = time.monotonic() + wait_s
        for held in self._held:
            if held.receipt is not None:
                with suppress(TuttiError, TimeoutError):
                    held.receipt.result(timeout=max(0.0, deadline_s - time.monotonic()))
        self.__exit__(TimeoutError, None, None)
        undecided: list[Run] = []
        failed: list[Run] = []
        reached = self._passed
        for held in self._held:
            if held.last <= self._passed:
                continue  # Ctrl-C struck before it was let go
            try:
                if held.receipt is None:
                    (undecided if held.handed else failed).append(held.run)
                    continue
                self._note(held, held.receipt.result(timeout=0.0))
            except (Unknown, Fenced, TimeoutError):
                if held.receipt is None or not held.receipt.left:
                    failed.append(held.run)
                    continue
                undecided.append(held.run)
            except TuttiError:
                failed.append(held.run)  # in no log
                continue
            reached = held.last
        return self._report()._replace(
            complete=False,
            undecided=sum(last - first + 1 for first, last in undecided),
            undecided_records=_joined(undecided),
            uncommitted_records=_joined(run for run in failed if run[1] < reached),
            uncommitted_from=reached + 1,
        )

    def _report(self) -> Report:
        seconds = time.monotonic() - self._begun_s
        return Report(self._topic, self._name, self._landed, self._skipped, self._first, self._last, seconds, lanes=self._lanes)

    def _resume(self) -> tuple[int, str]:
        """Records committed so far, and the hash of the input up to there."""
        sequence, progress = self._producer.resume()
        if sequence == 0:
            return 0, ""
        try:
            told = orjson.loads(progress or b"null")
        except orjson.JSONDecodeError:
            told = None
        if not isinstance(told, dict) or told.get("program") != _PROGRAM or told.get("count") != sequence:
            raise InputChanged(
                f"producer {self._name!r} has sent {counted(sequence, 'record')} by other means than `tutti produce`: choose "
                "another --producer"
            )
        return sequence, str(told.get("sha256"))

    def _skip(self, chunk: Chunk) -> Chunk:
        """The records of the chunk that were not committed before; those that were must be the same ones."""
        missing = self._committed - self._hash.count
        if missing <= 0:
            return chunk
        known, rest = chunk.cut(missing)
        self._hash.add(known.values)
        self._skipped += len(known.values)
        self._passed = self._hash.count
        if self._hash.count == self._committed and self._hash.hexdigest() != self._digest:
            raise InputChanged(
                f"the input does not begin with the {counted(self._committed, 'record')} that producer {self._name!r} has "
                "committed (or --topic, --format or --key is another): send the same input again, or choose another --producer"
            )
        return rest

    def _send_part(self, part: Chunk) -> None:
        self._hash.add(part.values)
        batch = batch_of(part)
        progress = orjson.dumps({"program": _PROGRAM, "count": self._hash.count, "sha256": self._hash.hexdigest()})
        while len(self._held) >= limits.PRODUCE_BATCHES_MAX:
            self._take_receipt()
        self._held.append(_Held(self._hash.count, batch, progress))
        try:
            self._transmit(self._held[-1])
        except Aborted:
            self._send_again()

    def _transmit(self, held: _Held) -> None:
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
        """Wait for the oldest batch; after an abort send again what did not commit."""
        oldest = self._held[0]
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
        self._note(oldest, offset)
        self._passed = oldest.last
        self._held.popleft()

    def _note(self, held: _Held, offset: int) -> None:
        """It is committed."""
        self._landed += held.batch.num_rows
        if offset != OFFSET_UNKNOWN and self._lanes is not None and held.receipt is not None:
            first, last = self._lanes.get(held.receipt.lane, (offset, 0))
            self._lanes[held.receipt.lane] = first, max(last, offset + held.batch.num_rows - 1)
        elif offset != OFFSET_UNKNOWN:  # otherwise it is not known any more where
            self._first = offset if self._first is None else self._first
            self._last = offset + held.batch.num_rows - 1

    def _send_again(self) -> None:
        """After an abort: what is behind the last committed sequence goes out once more, in order."""
        while True:
            self._aborts += 1
            sequence, _ = self._producer.resume()
            try:
                for held in self._held:
                    if held.last > sequence:
                        self._transmit(held)
            except Aborted:
                if self._aborts >= limits.PRODUCE_ABORTS_MAX:
                    raise
            else:
                return
