"""The forward-table: batches of this gateway's clients that are not decided (protocol/order, O9).

Every member is the origin of the batches of its own clients. An origin sends its batches to the coordinator, and keeps each batch
until the outcome is decided in the origin's log. The origin sends its batches again, in order, if they are not ordered for some
time or if the coordinator changes. The origin also answers the client.

Source: Ban, "Design of SEQUENCER" (2005).
"""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Iterable, Iterator

from tutti.data.client_protocol import AbortedAnswer, Answer, Committed, Duplicate, Expected, FencedAnswer, RefusedAnswer
from tutti.data.frames.frame import Frame
from tutti.data.log_state import Producer
from tutti_gateway.core import limits
from tutti_gateway.core.context import Context
from tutti_gateway.core.frame_runs import split_runs
from tutti_gateway.core.order.batch_admission import ADMISSION, Admission, relation
from tutti_gateway.core.order.received_table import ReceivedTable
from tutti_gateway.core.pending_window import FRAME_OVERHEAD_BYTES, weight
from tutti_gateway.core.protocol.events import Submitted
from tutti_gateway.core.protocol.messages import Forward, Refuse, Resend


class Queue:
    """Batches of one epoch of a producer, in order of sequences.

    `session` is the number of the session that sent the last batch, 0 if that session has ended.
    """

    __slots__ = ("epoch", "frames", "producer", "sent_us", "session")

    def __init__(self, producer: int, epoch: int) -> None:
        self.producer = producer
        self.epoch = epoch
        self.session = 0
        self.frames: deque[Frame] = deque()
        self.sent_us = 0

    def add(self, frame: Frame) -> bool:
        """Add a batch. Return False if the queue already holds the same batch."""
        frames = self.frames
        # Nearly every batch follows the last one in the queue, so this case avoids the search.
        if not frames or frames[-1].last_sequence < frame.first_sequence:
            frames.append(frame)
            return True
        # A client may divide records differently when it repeats them, so first sequence and count together identify a batch.
        key = (frame.first_sequence, frame.count)
        index = len(frames)
        while index and (frames[index - 1].first_sequence, frames[index - 1].count) > key:
            index -= 1
        if index and (frames[index - 1].first_sequence, frames[index - 1].count) == key:
            return False
        frames.insert(index, frame)
        return True


class ForwardTable:
    """Undecided batches of this gateway's clients, by producer and epoch.

    Attributes:
        queues: the waiting batches of each producer and epoch.
        count: number of batches in the table.
        bytes: approximate memory of the batches in the table.
    """

    def __init__(self, context: Context, received: ReceivedTable) -> None:
        self._outbox = context.outbox
        self._view_state = context.view_state
        self._window = context.window
        self._resend_us = limits.RESEND_HEARTBEATS * context.config.heartbeat_us
        self._bytes_max = context.config.undecided_bytes_max + limits.FORWARDED_MORE_BYTES_MAX
        self._received = received
        self.queues: dict[int, dict[int, Queue]] = {}
        self._unsent: list[Frame] = []  # batches that `submit` has added in this step and `flush` has not sent yet
        self.count = 0
        self.bytes = 0

    @property
    def full(self) -> bool:
        """True if the table has reached its limit of bytes or batches, so that it accepts no more batches."""
        return self.bytes >= self._bytes_max or self.count >= limits.FORWARDED_FRAMES_MAX

    def _all(self) -> Iterator[Queue]:
        for queues in self.queues.values():
            yield from queues.values()

    # From the client

    def submit(self, event: Submitted) -> None:
        """Add clients' batches, which `flush` then forwards. The session of each batch that is not added gets an answer."""
        state, table = self._window.state, self.queues
        producers, topics = state.producers, state.topics
        now_us = self._outbox.now.mono_us
        unsent = self._unsent
        number = -1
        line: Producer | None = None
        queue: Queue | None = None
        count, size = self.count, self.bytes
        frames_max, bytes_max = limits.FORWARDED_FRAMES_MAX, self._bytes_max
        for session, frame in zip(event.sessions, event.frames, strict=True):
            # Consecutive batches of one producer share one lookup, which keeps this loop fast.
            if frame.producer != number or queue is None or frame.epoch != queue.epoch:
                number = frame.producer
                line = producers.get(number)
                queues = table.get(number)
                queue = (queues.get(frame.epoch) if queues else None) or Queue(number, frame.epoch)
            if (
                line is None
                or line.closed
                or frame.epoch != line.epoch
                or frame.first_sequence + frame.count - 1 <= line.sequence
                or frame.topic not in topics
                or size >= bytes_max
                or count >= frames_max
            ):
                self.count, self.bytes = count, size
                self._reject(session, frame, line, self.full)
                continue
            queue.session = session
            if not queue.frames:
                queue.frames.append(frame)
                table.setdefault(number, {})[queue.epoch] = queue
                queue.sent_us = now_us
            elif not queue.add(frame):
                continue
            count += 1
            size += frame.body_length + FRAME_OVERHEAD_BYTES
            unsent.append(frame)
        self.count, self.bytes = count, size

    def flush(self) -> None:
        """Forward the batches that `submit` added in this step, in as few messages as possible."""
        if self._unsent:
            unsent, self._unsent = self._unsent, []
            self._send(unsent)

    def _send(self, frames: list[Frame]) -> None:
        """Send batches to the coordinator. Without a coordinator, `installed` sends the batches later, in order."""
        # Only a view that decides has a coordinator that may order batches.
        if self._view_state.primary:
            for chunk in split_runs(frames):
                self._outbox.send(self._view_state.coordinator, Forward(self._view_state.view, chunk))

    def _reject(self, session: int, frame: Frame, line: Producer | None, full: bool) -> None:
        """Answer a batch that is not forwarded. The decided log determines the answer."""
        answers = self._outbox.answers(session)
        if line is None:
            answers.append(self._without_line(frame))
            return
        last = frame.last_sequence
        how = ADMISSION[line.closed, relation(frame.epoch, frame.first_sequence, last, line.epoch, line.sequence)]
        if how is Admission.DUPLICATE:
            answers.append(Duplicate(frame.producer, frame.epoch, frame.first_sequence, frame.count))
        elif how is Admission.FENCED:
            answers.append(FencedAnswer(frame.producer, line.epoch, frame.first_sequence))
        elif how is Admission.EXPECTED:
            answers.append(Expected(frame.producer, frame.epoch, line.sequence + 1))
        elif how is Admission.ABORTED:
            answers.append(_aborted(frame, "an earlier message of its epoch was aborted"))
        elif how is Admission.REFUSED:
            reason = f"epoch {frame.epoch} of producer {frame.producer} has not begun (it is at {line.epoch}): open it first"
            answers.append(_refused(frame, "epoch", reason, retry=False))
        elif full:
            reason = f"{self.count} batches with {self.bytes} bytes are undecided at this gateway: send the batch again later"
            answers.append(_refused(frame, "busy", reason, retry=True))
        else:
            reason = f"topic {frame.topic} is not registered: open it first"
            answers.append(_refused(frame, "topic", reason, retry=False))

    def _without_line(self, frame: Frame) -> Answer:
        state = self._window.state
        if 0 < frame.producer < state.next_producer:
            # A FORGET has deleted the producer's sequences, so it is unknown whether this batch was committed.
            # The epoch in the answer is above every earlier epoch of the producer, so the client can continue with that epoch.
            return FencedAnswer(frame.producer, state.floor + 1, frame.first_sequence)
        reason = f"producer {frame.producer} is unknown here: open it first"
        return _refused(frame, "producer", reason, retry=False)

    def refuse(self, event: Submitted, code: str, reason: str) -> None:
        """Refuse clients' batches for a temporary reason. The clients may send them again."""
        for session, frame in zip(event.sessions, event.frames, strict=True):
            self._outbox.answers(session).append(_refused(frame, code, reason, retry=True))

    def session_closed(self, session: int) -> None:
        """Send no more answers to a session that has ended. The session's batches continue."""
        for queue in self._all():
            if queue.session == session:
                queue.session = 0

    # From the coordinator

    def on_resend(self, message: Resend) -> None:
        """Send again the batches that the coordinator did not order, or ask the client to send them."""
        queue = self.queues.get(message.producer, {}).get(message.epoch)
        line = self._window.state.producers.get(message.producer)
        # If the outcome of the requested batches is already decided in this log, the RESEND has arrived late and is ignored.
        if queue is None or line is None or line.epoch != message.epoch or message.sequence <= line.sequence:
            return
        # A batch that has a position is already ordered, so it is not sent again.
        again = [frame for frame in queue.frames if frame.first_sequence >= message.sequence and not frame.position]
        # If the table does not hold the batch at the requested sequence, only the client can send that batch.
        if again and again[0].first_sequence == message.sequence:
            self._forward(queue, again)
            return
        kept = deque(frame for frame in queue.frames if frame.last_sequence < message.sequence)
        self._uncount(frame for frame in queue.frames if frame.last_sequence >= message.sequence)
        queue.frames = kept
        self._remove_if_empty(queue)
        self._outbox.answers(queue.session).append(Expected(message.producer, message.epoch, message.sequence))

    def on_refuse(self, message: Refuse) -> None:
        """Remove a batch that the coordinator refuses, and answer its client."""
        queue = self.queues.get(message.producer, {}).get(message.epoch)
        if queue is None:
            return
        frame = next((one for one in queue.frames if one.first_sequence == message.first_sequence), None)
        # A batch that has a position is already in the log, so its refusal is out of date.
        if frame is None or frame.position:
            return
        queue.frames = deque(one for one in queue.frames if one is not frame)
        self._uncount((frame,))
        self._remove_if_empty(queue)
        self._outbox.answers(queue.session).append(_refused(frame, message.code, message.reason, message.retry))

    def _forward(self, queue: Queue, frames: list[Frame]) -> None:
        queue.sent_us = self._outbox.now.mono_us
        self._send(frames)

    # From the log

    def queue(self, producer: int, epoch: int) -> Queue | None:
        """Return the queue of a producer's epoch, None if no batch of that epoch waits."""
        queues = self.queues.get(producer)
        return queues.get(epoch) if queues else None

    def committed(self, queue: Queue, frame: Frame, offset: int) -> None:
        """Answer and remove the waiting batches whose sequences a decided batch, from any gateway, includes."""
        frames = queue.frames
        last = frame.first_sequence + frame.count - 1
        while frames:
            head = frames[0]
            if head.first_sequence + head.count - 1 > last:
                break
            frames.popleft()
            self.count -= 1
            self.bytes -= head.body_length + FRAME_OVERHEAD_BYTES
            # Session 0 means that the session has ended, so no receipt is sent.
            if not queue.session:
                continue
            answers = self._outbox.answers(queue.session)
            # If first sequence or count differ, the offset of the waiting batch is unknown, so the answer is Duplicate.
            if head.first_sequence == frame.first_sequence and head.count == frame.count:
                answers.append(Committed(head.producer, head.epoch, head.first_sequence, head.count, offset))
            else:
                answers.append(Duplicate(head.producer, head.epoch, head.first_sequence, head.count))
        if not frames:
            queues = self.queues[queue.producer]
            del queues[queue.epoch]
            if not queues:
                del self.queues[queue.producer]

    def aborted(self, producer: int, epoch: int, sequence: int, reason: str) -> None:
        """Answer the waiting batches of an epoch after its ABORT is decided. All records after `sequence` are void."""
        queue = self.queue(producer, epoch)
        if queue is None:
            return
        answers = self._outbox.answers(queue.session)
        for frame in queue.frames:
            if frame.first_sequence > sequence:
                answers.append(_aborted(frame, reason))
            # The log contains only a part of this batch, so the client must send the rest.
            elif frame.last_sequence > sequence:
                answers.append(Expected(producer, epoch, sequence + 1))
            else:
                answers.append(Duplicate(producer, epoch, frame.first_sequence, frame.count))
        self._end(queue)

    def fenced(self, producer: int, epoch: int) -> None:
        """Answer all waiting batches of the producer's epochs below `epoch` with Fenced, because their outcome is unknown."""
        # The loop runs over a new list, because `_end` removes entries from the table.
        for queue in [queue for queue in self.queues.get(producer, {}).values() if queue.epoch < epoch]:
            answers = self._outbox.answers(queue.session)
            answers.extend([FencedAnswer(producer, epoch, frame.first_sequence) for frame in queue.frames])
            self._end(queue)

    def log_replaced(self) -> None:
        """Answer the waiting batches whose outcome the installed snapshot determines."""
        producers = self._window.state.producers
        for queue in list(self._all()):
            line = producers.get(queue.producer)
            resolved = [frame for frame in queue.frames if not _open(frame, line)]
            for frame in resolved:
                self._reject(queue.session, frame, line, full=False)
            self._uncount(resolved)
            queue.frames = deque(frame for frame in queue.frames if _open(frame, line))
            self._remove_if_empty(queue)

    def forgotten(self, producer: int) -> None:
        """Answer the waiting batches of a producer with Fenced, because a FORGET has removed the producer from the log."""
        for queue in list(self.queues.get(producer, {}).values()):
            above = self._window.state.floor + 1
            answers = self._outbox.answers(queue.session)
            answers.extend([FencedAnswer(producer, above, frame.first_sequence) for frame in queue.frames])
            self._end(queue)

    def _end(self, queue: Queue) -> None:
        self._uncount(queue.frames)
        queue.frames = deque()
        self._remove_if_empty(queue)

    def _uncount(self, frames: Iterable[Frame]) -> None:
        for frame in frames:
            self.count -= 1
            self.bytes -= weight(frame)

    def _remove_if_empty(self, queue: Queue) -> None:
        if not queue.frames:
            queues = self.queues[queue.producer]
            del queues[queue.epoch]
            if not queues:
                del self.queues[queue.producer]

    def find(self, frame: Frame) -> Frame | None:
        """Return this gateway's copy of a batch whose header the coordinator echoed."""
        queue = self.queue(frame.producer, frame.epoch)
        if queue is None:
            return None
        frames, first = queue.frames, frame.first_sequence
        index = bisect_left(frames, first, key=_first_sequence)
        # Several batches may have the same first sequence, but their counts differ.
        while index < len(frames) and frames[index].first_sequence == first:
            if frames[index].count == frame.count:
                return frames[index]
            index += 1
        return None

    # Time and views

    def installed(self) -> None:
        """Send all batches to a new coordinator, in order, before any new batch."""
        for queue in self._all():
            unordered = self._unordered(queue)
            # Messages may still use a frame object whose position was truncated, so a copy without a position is sent.
            fresh = {id(frame): frame.unstamped() for frame in unordered if frame.position}
            queue.frames = deque(fresh.get(id(frame), frame) for frame in queue.frames)
            self._forward(queue, [fresh.get(id(frame), frame) for frame in unordered])

    def beat(self) -> None:
        """Run one heartbeat: repeat batches that got no answer for some time, because a message was probably lost."""
        now_us = self._outbox.now.mono_us
        for queue in self._all():
            if now_us - queue.sent_us >= self._resend_us:
                self._forward(queue, self._unordered(queue))

    def _unordered(self, queue: Queue) -> list[Frame]:
        """Return the batches in the queue that are not in this log. Undecided batches count as being in the log."""
        line = self._received.line(queue.producer)
        if line is None or line.epoch < queue.epoch:
            return list(queue.frames)
        if line.epoch > queue.epoch:
            return []
        return [frame for frame in queue.frames if frame.last_sequence > line.sequence]


def _open(frame: Frame, line: Producer | None) -> bool:
    """True if the outcome of the batch does not yet follow from the decided log."""
    return line is not None and not line.closed and frame.epoch == line.epoch and frame.last_sequence > line.sequence


def _first_sequence(frame: Frame) -> int:
    return frame.first_sequence


def _aborted(frame: Frame, reason: str) -> AbortedAnswer:
    text = f"{reason}; epoch {frame.epoch} is closed; continue under the next epoch"
    return AbortedAnswer(frame.producer, frame.epoch, frame.first_sequence, frame.count, text)


def _refused(frame: Frame, code: str, reason: str, retry: bool) -> RefusedAnswer:
    return RefusedAnswer(frame.producer, frame.epoch, frame.first_sequence, code, reason, retry)
