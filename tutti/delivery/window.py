"""Window: batches that have sequences and no outcome yet, oldest first.

The window knows which batches must still be sent on the current connection. The window also keeps the bytes in
flight below the gateway's limit. The window performs no I/O and does not know epochs.
"""

from __future__ import annotations

import collections
from collections.abc import Callable, Iterator, Mapping

from tutti import limits
from tutti.batching.encoder import Compression, drop_committed
from tutti.batching.receipt import Batch, Failure, Resume
from tutti.data.client_protocol import INLINE_BYTES_MAX, OFFSET_UNKNOWN, join_submit
from tutti.data.frames.frame import MAGIC, STAGED, VERSION, Buffer, Kind, pack_unstamped
from tutti.data.frames.schema import compression_flags
from tutti.errors import invariant

_BATCH = int(Kind.BATCH)


class Window:
    """The batches of one producer that are in flight.

    Attributes:
        awaits_answer: True if a batch was sent on this connection and has no answer.
        bytes_in_flight: encoded size of the batches in flight.
    """

    def __init__(self, compression: Compression, unordered: bool = False, staged: bool = False) -> None:
        """Create an empty window. Its batches go to lanes (`unordered`), or stay invisible until a TXN frame (`staged`)."""
        self.bytes_max = limits.WINDOW_BYTES
        self.next_sequence = 1
        self.committed = Resume(0, b"")
        self.resolved: list[Batch] = []  # batches whose outcome is not published yet
        self._compression = compression
        self._unordered = unordered
        self._flags = compression_flags(compression) | (STAGED if staged else 0)
        self._unanswered: collections.deque[Batch] = collections.deque()
        self._by_sequence: dict[int, Batch] = {}
        self.bytes_in_flight = 0
        self._to_send: collections.deque[Batch] = collections.deque()
        self.awaits_answer = False
        self.records_resent = 0

    def __len__(self) -> int:
        return len(self._unanswered)

    def __iter__(self) -> Iterator[Batch]:
        return iter(self._unanswered)

    @property
    def oldest(self) -> Batch | None:
        """The oldest batch in flight, or None."""
        return self._unanswered[0] if self._unanswered else None

    @property
    def in_flight(self) -> int:
        """The number of records from the oldest batch in flight to the newest. May be called in any thread."""
        try:
            oldest = self._unanswered[0].first_sequence
        except IndexError:
            return 0
        # A batch that another thread is removing has sequence 0.
        return max(0, self.next_sequence - oldest) if oldest else 0

    @property
    def has_unsent(self) -> bool:
        """True if a batch must be sent (again)."""
        return bool(self._to_send)

    def has_capacity(self, batch: Batch) -> bool:
        """Return True if the batch fits into the window. A batch always fits into an empty window."""
        if not self._unanswered:
            return True
        return self.bytes_in_flight + batch.size <= self.bytes_max and len(self._unanswered) < limits.CLIENT_WINDOW_FRAMES

    def admit(self, batch: Batch) -> None:
        """Give a batch its sequences and queue it for sending."""
        batch.first_sequence = self.next_sequence
        self.next_sequence += batch.count
        self.bytes_in_flight += batch.size
        self._unanswered.append(batch)
        self._by_sequence[batch.first_sequence] = batch
        self._to_send.append(batch)

    def rewind(self) -> None:
        """Queue all batches for sending again, in order. The gateway removes duplicates, so all batches can be repeated."""
        self._to_send = collections.deque(self._unanswered)
        self.awaits_answer = False

    def rewind_below(self, sequence: int) -> None:
        """Queue the batches that start below `sequence` for sending again, because the gateway holds the later ones."""
        repeated = [batch for batch in self._unanswered if batch.first_sequence < sequence]
        self._to_send = collections.deque(repeated + [batch for batch in self._to_send if batch.first_sequence >= sequence])

    def messages(
        self, number: int, epoch: int, topics: Mapping[str, int], topic_number: Callable[[str], int]
    ) -> list[list[Buffer]]:
        """Return submit messages for queued batches, up to the first batch whose topic has no number yet (0).

        `topics` contains the known numbers, and `topic_number` requests the other ones.

        A message contains either small or large bodies, up to about `SUBMIT_BYTES`. Small bodies are copied into one part of the
        message; each large body is a separate part without a copy.
        """
        messages: list[list[Buffer]] = []
        headers: list[bytes] = []
        batches: list[Batch] = []
        size = 0
        small = True
        to_send = self._to_send
        while to_send:
            batch = to_send[0]
            if batch.resolved:
                to_send.popleft()
                continue
            topic = topics.get(batch.topic) or topic_number(batch.topic)
            # Stop at a batch without a topic number, because the gateway accepts sequences only in order.
            if not topic:
                break
            is_small = batch.size <= INLINE_BYTES_MAX
            if batches and (
                is_small != small or size + batch.size > limits.SUBMIT_BYTES or len(batches) >= limits.FRAMES_A_MESSAGE_MAX
            ):
                messages.append(join_submit(headers, batches, self._unordered))
                headers, batches, size = [], [], 0
            small = is_small
            to_send.popleft()
            headers.append(self._header(batch, number, epoch, topic))
            batches.append(batch)
            size += batch.size
            if batch.transmitted:
                self.records_resent += batch.remaining
            batch.transmitted = self.awaits_answer = True
            batch.copies += 1
        if batches:
            messages.append(join_submit(headers, batches, self._unordered))
        return messages

    def _header(self, batch: Batch, number: int, epoch: int, topic: int) -> bytes:
        if not batch.body:
            invariant(False, "a batch that is sent must have a body")
        flags = 0
        if batch.kind == _BATCH:
            # A batch from a spool has its own compression (`codec`), because an earlier run may have written it with other options.
            flags = self._flags if batch.codec == "" else compression_flags(batch.codec)
        return pack_unstamped(
            MAGIC,
            VERSION,
            batch.kind,
            flags,
            number,
            batch.first_sequence,
            batch.min_timestamp,
            batch.max_timestamp,
            epoch,
            batch.count - batch.trimmed,
            topic,
            len(batch.progress),
            len(batch.body),
            batch.raw_length,
            batch.crc,
        )

    def commit(self, first_sequence: int, count: int, offset: int) -> bool:
        """Record that a batch committed. Return False if no batch in flight has this sequence and count."""
        batch, unanswered = self._by_sequence.get(first_sequence), self._unanswered
        # With another count, the receipt concerns a copy that was sent before `trim_below` removed records from the batch.
        if batch is None or batch.count - batch.trimmed != count:
            return False
        last_sequence, committed = first_sequence + count - 1, self.committed
        # Outcomes may arrive out of order, so keep only the highest committed sequence.
        if last_sequence > committed.sequence:
            progress = batch.progress or (committed.progress if unanswered[0] is batch else self._progress_before(batch))
            # The constructor of a NamedTuple would take twice the time.
            self.committed = tuple.__new__(Resume, (last_sequence, progress))
        del self._by_sequence[first_sequence]
        self.bytes_in_flight -= batch.size
        batch.offset, batch.resolved = offset, True
        self.resolved.append(batch)
        # Most receipts concern the only batch in flight.
        if len(unanswered) == 1:
            unanswered.clear()
            self.awaits_answer = False
        else:
            self._drop_resolved()
        return True

    def commit_upto(self, sequence: int) -> None:
        """Record that all batches up to `sequence` committed at unknown offsets."""
        for batch in list(self._unanswered):
            if not batch.resolved and batch.last_sequence <= sequence:
                self.commit(batch.first_sequence, batch.remaining, OFFSET_UNKNOWN)

    def fail_from(self, sequence: int, failure: Failure) -> bool:
        """Fail every batch that ends at `sequence` or later. Return True if a batch failed."""
        before = len(self.resolved)
        for batch in list(self._unanswered):
            if not batch.resolved and batch.last_sequence >= sequence:
                self._resolve(batch, OFFSET_UNKNOWN, failure)
        self._drop_resolved()
        return len(self.resolved) > before

    def fail_at(self, sequence: int, failure: Failure) -> None:
        """Fail the batch that starts at `sequence`, if it has no outcome yet."""
        batch = self._by_sequence.get(sequence)
        if batch is not None:
            self._resolve(batch, OFFSET_UNKNOWN, failure)
            self._drop_resolved()

    def fail(self, batch: Batch, failure: Failure) -> None:
        """Fail a batch that has no sequence."""
        self._resolve(batch, OFFSET_UNKNOWN, failure)

    def trim_below(self, sequence: int) -> None:
        """Remove the records below `sequence` from the batch that contains `sequence`, because the log already contains them."""
        for batch in self._unanswered:
            if not batch.resolved and batch.first_sequence < sequence <= batch.last_sequence:
                del self._by_sequence[batch.first_sequence]
                self.bytes_in_flight -= batch.size
                # The rest of the batch has a new first sequence, body and CRC, so the gateway treats it as a new batch.
                drop_committed(batch, sequence - batch.first_sequence, self._compression if batch.codec == "" else batch.codec)
                self.bytes_in_flight += batch.size
                self._by_sequence[batch.first_sequence] = batch

    def batch_at(self, sequence: int) -> Batch | None:
        """Return the batch that starts at `sequence`, or None."""
        return self._by_sequence.get(sequence)

    def mark_rejected(self, sequence: int, *, all_copies: bool) -> None:
        """Record that the gateway rejected one copy of a batch; with `all_copies`, that it rejects every copy."""
        batch = self._by_sequence.get(sequence)
        if batch is not None:
            batch.copies = 0 if all_copies else max(0, batch.copies - 1)

    @property
    def in_doubt(self) -> bool:
        """True if the gateway may still accept a copy of any batch."""
        return any(batch.copies for batch in self._unanswered if not batch.resolved)

    def withdraw(self, above: int = -1) -> list[Batch]:
        """Remove and return, in order, the newest batches of which the gateway can no longer accept a copy.

        Only batches with a serial above `above` are removed. Removed batches lose their sequences.
        """
        withdrawn: list[Batch] = []
        while self._unanswered:
            batch = self._unanswered[-1]
            # Remove the newest batch first: `next_sequence` then decreases step by step, and sequences have no gaps.
            if batch.copies or batch.resolved or batch.serial <= above:
                break
            self._unanswered.pop()
            del self._by_sequence[batch.first_sequence]
            self.bytes_in_flight -= batch.size
            self.next_sequence = batch.first_sequence
            batch.first_sequence, batch.transmitted, batch.lane = 0, False, ""
            withdrawn.append(batch)
        if withdrawn:
            self.awaits_answer = self.awaits_answer and bool(self._unanswered)
            self._to_send = collections.deque(batch for batch in self._to_send if batch.first_sequence)
        return withdrawn[::-1]

    def drain(self) -> list[Batch]:
        """Remove and return all batches without an outcome, oldest first. Removed batches lose their sequences."""
        batches = [batch for batch in self._unanswered if not batch.resolved]
        for batch in batches:
            batch.first_sequence = 0
        self._unanswered.clear()
        self._by_sequence.clear()
        self._to_send.clear()
        self.bytes_in_flight, self.awaits_answer = 0, False
        return batches

    def pop_resolved(self) -> list[Batch]:
        """Remove and return the batches that got an outcome since the last call, in the order of the outcomes."""
        resolved, self.resolved = self.resolved, []
        return resolved

    def _progress_before(self, batch: Batch) -> bytes:
        """Return the last progress before a committed batch.

        The log orders the batches of a producer by sequence, so all earlier batches have committed too. Their receipts may arrive
        later, because different gateways may send the receipts.
        """
        progress = self.committed.progress
        for earlier in self._unanswered:
            if earlier is batch:
                break
            if earlier.progress and earlier.failure is None:
                progress = earlier.progress
        return progress

    def _resolve(self, batch: Batch, offset: int, failure: Failure | None) -> None:
        # A batch without a sequence was never in the window, so its bytes are not counted.
        if self._by_sequence.pop(batch.first_sequence, None) is not None:
            self.bytes_in_flight -= batch.size
        batch.resolve(offset, failure)
        self.resolved.append(batch)

    def _drop_resolved(self) -> None:
        unanswered = self._unanswered
        # Remove resolved batches only from the old end, so that the oldest batch in the window never has an outcome.
        while unanswered and unanswered[0].resolved:
            unanswered.popleft()
        if not unanswered:
            self.awaits_answer = False  # nothing is unanswered, so the next sent batch starts the silence timeout
