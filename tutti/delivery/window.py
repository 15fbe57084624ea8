"""The window: batches that were given their sequences and have no outcome yet, oldest first.

It knows what was sent on the present connection and what is to be sent (again), and it keeps to the bytes that a gateway lets a
client have in flight. It does no I/O and knows nothing of epochs.
"""

from __future__ import annotations

import collections
from collections.abc import Callable, Iterator

from tutti import limits
from tutti.batching.encoder import Compression, cut
from tutti.batching.receipt import Batch, Failure, Resume
from tutti.data.client_protocol import INLINE_BYTES_MAX, OFFSET_UNKNOWN, encode_submit
from tutti.data.frames.frame import STAGED, Buffer, Frame, Kind
from tutti.data.frames.schema import compression_flags
from tutti.errors import invariant


class Window:
    """Unanswered batches of one producer."""

    def __init__(self, compression: Compression, unordered: bool = False, staged: bool = False) -> None:
        """Begin empty; `unordered` says that its batches go to the lane of the gateway, `staged` that they wait for a TXN."""
        self.bytes_max = limits.WINDOW_BYTES
        self.next_sequence = 1
        self.committed = Resume(0, b"")
        self.settled: list[Batch] = []  # outcomes that nobody was told yet
        self._compression = compression
        self._unordered = unordered
        self._flags = compression_flags(compression) | (STAGED if staged else 0)
        self._unanswered: collections.deque[Batch] = collections.deque()
        self._by_sequence: dict[int, Batch] = {}
        self._bytes = 0
        self._to_send: collections.deque[Batch] = collections.deque()
        self._sent = False  # something, on this connection

    def __len__(self) -> int:
        return len(self._unanswered)

    def __iter__(self) -> Iterator[Batch]:
        return iter(self._unanswered)

    @property
    def oldest(self) -> Batch | None:
        """The batch that was sent first."""
        return self._unanswered[0] if self._unanswered else None

    @property
    def waits(self) -> bool:
        """Whether something was sent on this connection that has no answer."""
        return self._sent and bool(self._unanswered)

    @property
    def has_unsent(self) -> bool:
        """Whether something has a sequence and is to be sent (again)."""
        return bool(self._to_send)

    def has_room(self, batch: Batch) -> bool:
        """Whether the batch may be in flight too; one alone always may."""
        if not self._unanswered:
            return True
        return self._bytes + batch.size <= self.bytes_max and len(self._unanswered) < limits.CLIENT_WINDOW_FRAMES

    def admit(self, batch: Batch) -> None:
        """Give a batch its sequences; it is to be sent next."""
        batch.first_sequence = self.next_sequence
        self.next_sequence += batch.count
        self._bytes += batch.size
        self._unanswered.append(batch)
        self._by_sequence[batch.first_sequence] = batch
        self._to_send.append(batch)

    def rewind(self) -> None:
        """Send everything again, in order: what was sent before counts as not sent."""
        self._to_send = collections.deque(self._unanswered)
        self._sent = False

    def messages(self, number: int, epoch: int, topic_number: Callable[[str], int]) -> Iterator[list[Buffer]]:
        """Submit messages for what is to be sent, up to the first batch whose topic has no number yet (0).

        Small bodies are joined, large ones travel as they are.
        """
        frames: list[Frame] = []
        size = 0
        small = True
        while self._to_send:
            batch = self._to_send[0]
            if batch.settled:
                self._to_send.popleft()
                continue
            topic = topic_number(batch.topic)
            if not topic:
                break
            is_small = batch.size <= INLINE_BYTES_MAX
            if frames and (
                is_small != small or size + batch.size > limits.SUBMIT_BYTES or len(frames) >= limits.FRAMES_A_MESSAGE_MAX
            ):
                yield encode_submit(frames, self._unordered)
                frames, size = [], 0
            small = is_small
            self._to_send.popleft()
            frames.append(self._frame(batch, number, epoch, topic))
            size += batch.size
            batch.transmitted = self._sent = True
            batch.copies += 1
        if frames:
            yield encode_submit(frames, self._unordered)

    def _flags_of(self, batch: Batch) -> int:
        return self._flags if batch.codec == "" else compression_flags(batch.codec)

    def _frame(self, batch: Batch, number: int, epoch: int, topic: int) -> Frame:
        invariant(bool(batch.body), "a batch that is sent has a body")
        return Frame(
            batch.kind,
            batch.body,
            progress=batch.progress,
            flags=self._flags_of(batch) if batch.kind == Kind.BATCH else 0,
            producer=number,
            epoch=epoch,
            first_sequence=batch.first_sequence,
            count=batch.remaining,
            topic=topic,
            min_timestamp=batch.min_timestamp,
            max_timestamp=batch.max_timestamp,
            raw_length=batch.raw_length,
            body_crc=batch.crc,
        )

    def commit(self, first_sequence: int, count: int, offset: int) -> bool:
        """A batch committed; whether it was one that waited for that."""
        batch = self._by_sequence.get(first_sequence)
        if batch is None or batch.remaining != count:
            return False
        self._committed(batch, offset)
        self._drop_settled()
        return True

    def commit_upto(self, sequence: int) -> None:
        """Everything up to `sequence` committed, where is not known."""
        for batch in list(self._unanswered):
            if not batch.settled and batch.last_sequence <= sequence:
                self._committed(batch, OFFSET_UNKNOWN)
        self._drop_settled()

    def fail_from(self, sequence: int, failure: Failure) -> bool:
        """Everything from `sequence` on failed; whether there was anything."""
        before = len(self.settled)
        for batch in list(self._unanswered):
            if not batch.settled and batch.last_sequence >= sequence:
                self._settle(batch, OFFSET_UNKNOWN, failure)
        self._drop_settled()
        return len(self.settled) > before

    def fail_at(self, sequence: int, failure: Failure) -> None:
        """The batch that starts at `sequence` failed, if it has no outcome yet."""
        batch = self._by_sequence.get(sequence)
        if batch is not None:
            self._settle(batch, OFFSET_UNKNOWN, failure)
            self._drop_settled()

    def fail(self, batch: Batch, failure: Failure) -> None:
        """A batch that has no sequence failed."""
        self._settle(batch, OFFSET_UNKNOWN, failure)

    def cut_at(self, sequence: int) -> None:
        """The log holds everything below `sequence`: what overlaps that is cut, to be sent again from there."""
        for batch in self._unanswered:
            if not batch.settled and batch.first_sequence < sequence <= batch.last_sequence:
                del self._by_sequence[batch.first_sequence]
                self._bytes -= batch.size
                cut(batch, sequence - batch.first_sequence, self._compression if batch.codec == "" else batch.codec)
                self._bytes += batch.size
                self._by_sequence[batch.first_sequence] = batch

    def at(self, sequence: int) -> Batch | None:
        """The batch that starts there, if it has no outcome."""
        return self._by_sequence.get(sequence)

    def turned_away(self, sequence: int, *, all_copies: bool) -> None:
        """The gateway did not take a copy of the batch that starts there; with `all_copies` it never will take any."""
        batch = self._by_sequence.get(sequence)
        if batch is not None:
            batch.copies = 0 if all_copies else max(0, batch.copies - 1)

    @property
    def in_doubt(self) -> bool:
        """Whether of any batch a copy may still be taken."""
        return any(batch.copies for batch in self._unanswered if not batch.settled)

    def take_back(self, above: int = -1) -> list[Batch]:
        """The last batches of which no copy may still be taken, in order, of those with a serial `above` that one.

        They have no sequence any more.
        """
        back: list[Batch] = []
        while self._unanswered:
            batch = self._unanswered[-1]
            if batch.copies or batch.settled or batch.serial <= above:
                break
            self._unanswered.pop()
            del self._by_sequence[batch.first_sequence]
            self._bytes -= batch.size
            self.next_sequence = batch.first_sequence
            batch.first_sequence, batch.transmitted, batch.lane = 0, False, ""
            back.append(batch)
        if back:
            self._sent = self._sent and bool(self._unanswered)
            self._to_send = collections.deque(batch for batch in self._to_send if batch.first_sequence)
        return back[::-1]

    def let_go(self) -> list[Batch]:
        """All that have no outcome, oldest first: they have no sequence any more."""
        batches = [batch for batch in self._unanswered if not batch.settled]
        for batch in batches:
            batch.first_sequence = 0
        self._unanswered.clear()
        self._by_sequence.clear()
        self._to_send.clear()
        self._bytes, self._sent = 0, False
        return batches

    def take_settled(self) -> list[Batch]:
        """Batches with an outcome, each once, in the order in which it came."""
        settled, self.settled = self.settled, []
        return settled

    def _committed(self, batch: Batch, offset: int) -> None:
        if batch.last_sequence > self.committed.sequence:
            self.committed = Resume(batch.last_sequence, batch.progress or self._progress_before(batch))
        self._settle(batch, offset, None)

    def _progress_before(self, batch: Batch) -> bytes:
        """The last progress before a batch that committed: what was sent before it has committed too, also where its own outcome
        comes later, as that of a copy which another gateway had ordered may.
        """
        progress = self.committed.progress
        for one in self._unanswered:
            if one is batch:
                break
            if one.progress and one.failure is None:
                progress = one.progress
        return progress

    def _settle(self, batch: Batch, offset: int, failure: Failure | None) -> None:
        if self._by_sequence.pop(batch.first_sequence, None) is not None:
            self._bytes -= batch.size
        batch.settle(offset, failure)
        self.settled.append(batch)

    def _drop_settled(self) -> None:
        unanswered = self._unanswered
        while unanswered and unanswered[0].settled:
            unanswered.popleft()
        if not unanswered:
            self._sent = False  # what comes next waits from when it is sent
