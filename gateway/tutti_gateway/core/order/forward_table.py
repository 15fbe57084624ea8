"""The forward-table: batches that came in at this gateway and are not decided (Ban 2005, "Design of SEQUENCER").

Every member is an origin. It sends its batches to the coordinator, keeps them until its own log has decided their outcome, sends
them again in order to a new coordinator (and to the same one when nothing happened for a while), and answers the client.
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
from tutti_gateway.core.frame_runs import parts
from tutti_gateway.core.order.received_table import Received
from tutti_gateway.core.order.verdicts import ENTRANCE, Entrance, relation
from tutti_gateway.core.protocol.messages import Forward, Refuse, Resend
from tutti_gateway.core.window import weight


class Queue:
    """The batches of one epoch of a producer, in order of their sequences, for the session that sent the last of them."""

    __slots__ = ("epoch", "frames", "producer", "sent_us", "session")

    def __init__(self, producer: int, epoch: int) -> None:
        self.producer = producer
        self.epoch = epoch
        self.session = 0
        self.frames: deque[Frame] = deque()
        self.sent_us = 0

    def add(self, frame: Frame) -> bool:
        """Take a batch in; False if the very same is there."""
        frames = self.frames
        if not frames or frames[-1].last_sequence < frame.first_sequence:
            frames.append(frame)
            return True
        key = (frame.first_sequence, frame.count)
        place = len(frames)
        while place and (frames[place - 1].first_sequence, frames[place - 1].count) > key:
            place -= 1
        if place and (frames[place - 1].first_sequence, frames[place - 1].count) == key:
            return False
        frames.insert(place, frame)
        return True


class ForwardTable:
    """The table, by producer and epoch.

    Attributes:
        count, bytes: batches in it, and about the memory they hold.
    """

    def __init__(self, context: Context, received: Received) -> None:
        self._outbox = context.outbox
        self._standing = context.standing
        self._window = context.window
        self._resend_us = limits.RESEND_HEARTBEATS * context.config.heartbeat_us
        self._bytes_max = context.config.undecided_bytes_max + limits.FORWARDED_MORE_BYTES_MAX
        self._received = received
        self._queues: dict[int, dict[int, Queue]] = {}
        self._leaving: list[Frame] = []  # of this step
        self.count = 0
        self.bytes = 0

    @property
    def full(self) -> bool:
        """Whether the table takes no more."""
        return self.bytes >= self._bytes_max or self.count >= limits.FORWARDED_FRAMES_MAX

    def _all(self) -> Iterator[Queue]:
        for queues in self._queues.values():
            yield from queues.values()

    # From the client

    def submit(self, session: int, frames: tuple[Frame, ...]) -> None:
        """Take batches of a session in, to be forwarded by `leave`, or answer why not."""
        state = self._window.state
        producers, topics = state.producers, state.topics
        now_us = self._outbox.now.mono_us
        leaving = self._leaving
        number = -1
        line: Producer | None = None
        queue: Queue | None = None
        full = self.full
        for frame in frames:
            if frame.producer != number or queue is None or frame.epoch != queue.epoch:
                number = frame.producer
                line = producers.get(number)
                queue = self._queue(number, frame.epoch)
            if (
                line is None
                or line.closed
                or frame.epoch != line.epoch
                or frame.first_sequence + frame.count - 1 <= line.sequence
                or frame.topic not in topics
                or full
            ):
                self._turn_away(session, frame, line, full)
                continue
            queue.session = session
            if queue.add(frame):
                if len(queue.frames) == 1:
                    self._queues.setdefault(number, {})[queue.epoch] = queue
                    queue.sent_us = now_us
                self.count += 1
                self.bytes += weight(frame)
                leaving.append(frame)
                full = self.full

    def leave(self) -> None:
        """Forward what was submitted; called in the same step."""
        if self._leaving:
            leaving, self._leaving = self._leaving, []
            self._send(leaving)

    def _send(self, frames: list[Frame]) -> None:
        """To the coordinator; while there is none they wait for the next one, to whom everything goes in order (`installed`)."""
        if self._standing.primary:
            for part in parts(frames):
                self._outbox.send(self._standing.coordinator, Forward(self._standing.view, part))

    def _queue(self, producer: int, epoch: int) -> Queue:
        queues = self._queues.get(producer)
        queue = queues.get(epoch) if queues else None
        return queue or Queue(producer, epoch)

    def _turn_away(self, session: int, frame: Frame, line: Producer | None, full: bool) -> None:
        """Answer a batch that is not forwarded, from what is decided here."""
        answers = self._outbox.answers(session)
        if line is None:
            answers.append(self._without_line(frame))
            return
        last = frame.last_sequence
        how = ENTRANCE[line.closed, relation(frame.epoch, frame.first_sequence, last, line.epoch, line.sequence)]
        if how is Entrance.DUPLICATE:
            answers.append(Duplicate(frame.producer, frame.epoch, frame.first_sequence, frame.count))
        elif how is Entrance.FENCED:
            answers.append(FencedAnswer(frame.producer, line.epoch, frame.first_sequence))
        elif how is Entrance.EXPECTED:
            answers.append(Expected(frame.producer, frame.epoch, line.sequence + 1))
        elif how is Entrance.ABORTED:
            answers.append(_aborted(frame, "an earlier message of it was aborted"))
        elif how is Entrance.REFUSED:
            reason = f"epoch {frame.epoch} of producer {frame.producer} has not begun (it is at {line.epoch}): open it first"
            answers.append(_refused(frame, "epoch", reason, retry=False))
        elif full:
            reason = f"{self.count} batches with {self.bytes} bytes wait to be decided at this gateway: send it again later"
            answers.append(_refused(frame, "busy", reason, retry=True))
        else:
            reason = f"topic {frame.topic} is not registered: open it first"
            answers.append(_refused(frame, "topic", reason, retry=False))

    def _without_line(self, frame: Frame) -> Answer:
        state = self._window.state
        if 0 < frame.producer < state.next_producer:
            # It was there and was forgotten: whether this copy committed before that is not known any more. The epoch named is
            # above whatever it had.
            return FencedAnswer(frame.producer, state.floor + 1, frame.first_sequence)
        reason = f"producer {frame.producer} is not known here: open it first"
        return _refused(frame, "producer", reason, retry=False)

    def refuse(self, session: int, frames: tuple[Frame, ...], code: str, reason: str) -> None:
        """Take nothing, for a reason that passes."""
        self._outbox.answers(session).extend([_refused(frame, code, reason, retry=True) for frame in frames])

    def session_closed(self, session: int) -> None:
        """What it submitted goes on, and nobody is told."""
        for queue in self._all():
            if queue.session == session:
                queue.session = 0

    # From the coordinator

    def on_resend(self, message: Resend) -> None:
        """Some batches were not taken: send again from the sequence, or have the client do it."""
        queue = self._queues.get(message.producer, {}).get(message.epoch)
        line = self._window.state.producers.get(message.producer)
        if queue is None or line is None or line.epoch != message.epoch or message.sequence <= line.sequence:
            return
        again = [frame for frame in queue.frames if frame.first_sequence >= message.sequence and not frame.position]
        if again and again[0].first_sequence == message.sequence:
            self._forward(queue, again)
            return
        kept = deque(frame for frame in queue.frames if frame.last_sequence < message.sequence)
        self._dropped(frame for frame in queue.frames if frame.last_sequence >= message.sequence)
        queue.frames = kept
        self._tidy(queue)
        self._outbox.answers(queue.session).append(Expected(message.producer, message.epoch, message.sequence))

    def on_refuse(self, message: Refuse) -> None:
        """The coordinator does not take a batch."""
        queue = self._queues.get(message.producer, {}).get(message.epoch)
        if queue is None:
            return
        frame = next((one for one in queue.frames if one.first_sequence == message.first_sequence), None)
        if frame is None or frame.position:
            return
        queue.frames = deque(one for one in queue.frames if one is not frame)
        self._dropped((frame,))
        self._tidy(queue)
        self._outbox.answers(queue.session).append(_refused(frame, message.code, message.reason, message.retry))

    def _forward(self, queue: Queue, frames: list[Frame]) -> None:
        queue.sent_us = self._outbox.now.mono_us
        self._send(frames)

    # From the log

    def queue(self, producer: int, epoch: int) -> Queue | None:
        """The queue of an epoch, if it holds anything."""
        queues = self._queues.get(producer)
        return queues.get(epoch) if queues else None

    def committed(self, queue: Queue, frame: Frame, offset: int) -> None:
        """A batch of the queue's epoch is decided, through whichever gateway it came."""
        frames = queue.frames
        last = frame.first_sequence + frame.count - 1
        while frames:
            head = frames[0]
            if head.first_sequence + head.count - 1 > last:
                break
            frames.popleft()
            self.count -= 1
            self.bytes -= weight(head)
            if not queue.session:
                continue
            answers = self._outbox.answers(queue.session)
            if head.first_sequence == frame.first_sequence and head.count == frame.count:
                answers.append(Committed(head.producer, head.epoch, head.first_sequence, head.count, offset))
            else:
                answers.append(Duplicate(head.producer, head.epoch, head.first_sequence, head.count))
        if not frames:
            self._tidy(queue)

    def aborted(self, producer: int, epoch: int, sequence: int, reason: str) -> None:
        """The ABORT of the epoch is decided: everything of it behind `sequence` is void."""
        queue = self.queue(producer, epoch)
        if queue is None:
            return
        answers = self._outbox.answers(queue.session)
        for frame in queue.frames:
            if frame.first_sequence > sequence:
                answers.append(_aborted(frame, reason))
            elif frame.last_sequence > sequence:
                answers.append(Expected(producer, epoch, sequence + 1))
            else:
                answers.append(Duplicate(producer, epoch, frame.first_sequence, frame.count))
        self._end(queue)

    def fenced(self, producer: int, epoch: int) -> None:
        """Epochs of the producer below `epoch` are over; the outcome of their batches is not known."""
        for queue in [queue for queue in self._queues.get(producer, {}).values() if queue.epoch < epoch]:
            answers = self._outbox.answers(queue.session)
            answers.extend([FencedAnswer(producer, epoch, frame.first_sequence) for frame in queue.frames])
            self._end(queue)

    def relearned(self) -> None:
        """The decided log went on without telling of each batch: what it settles is answered from what it says now."""
        producers = self._window.state.producers
        for queue in list(self._all()):
            line = producers.get(queue.producer)
            settled = [frame for frame in queue.frames if not _open(frame, line)]
            for frame in settled:
                self._turn_away(queue.session, frame, line, full=False)
            self._dropped(settled)
            queue.frames = deque(frame for frame in queue.frames if _open(frame, line))
            self._tidy(queue)

    def forgotten(self, producer: int) -> None:
        """The producer is no longer in the table."""
        for queue in list(self._queues.get(producer, {}).values()):
            above = self._window.state.floor + 1
            answers = self._outbox.answers(queue.session)
            answers.extend([FencedAnswer(producer, above, frame.first_sequence) for frame in queue.frames])
            self._end(queue)

    def _end(self, queue: Queue) -> None:
        self._dropped(queue.frames)
        queue.frames = deque()
        self._tidy(queue)

    def _dropped(self, frames: Iterable[Frame]) -> None:
        for frame in frames:
            self.count -= 1
            self.bytes -= weight(frame)

    def _tidy(self, queue: Queue) -> None:
        if not queue.frames:
            queues = self._queues[queue.producer]
            del queues[queue.epoch]
            if not queues:
                del self._queues[queue.producer]

    def find(self, frame: Frame) -> Frame | None:
        """The own copy of a batch that the coordinator echoes by its header."""
        queue = self.queue(frame.producer, frame.epoch)
        if queue is None:
            return None
        frames, first = queue.frames, frame.first_sequence
        place = bisect_left(frames, first, key=_first_sequence)
        while place < len(frames) and frames[place].first_sequence == first:
            if frames[place].count == frame.count:
                return frames[place]
            place += 1
        return None

    # Time and views

    def installed(self) -> None:
        """A new coordinator: everything goes to it again, in order, before anything new."""
        for queue in self._all():
            behind = self._behind(queue)
            # What was placed and cut again has to be placed anew; a stamped frame keeps its place for ever.
            fresh = {id(frame): frame.unstamped() for frame in behind if frame.position}
            queue.frames = deque(fresh.get(id(frame), frame) for frame in queue.frames)
            self._forward(queue, [fresh.get(id(frame), frame) for frame in behind])

    def beat(self) -> None:
        """Send again what was neither ordered nor refused for a while: the message, or the answer to it, was lost."""
        now_us = self._outbox.now.mono_us
        for queue in self._all():
            if now_us - queue.sent_us >= self._resend_us:
                self._forward(queue, self._behind(queue))

    def _behind(self, queue: Queue) -> list[Frame]:
        """The batches that the log's end here does not hold."""
        line = self._received.line(queue.producer)
        if line is None or line.epoch < queue.epoch:
            return list(queue.frames)
        if line.epoch > queue.epoch:
            return []
        return [frame for frame in queue.frames if frame.last_sequence > line.sequence]


def _open(frame: Frame, line: Producer | None) -> bool:
    """Whether the outcome of a batch is still to come, as the decided log has its producer."""
    return line is not None and not line.closed and frame.epoch == line.epoch and frame.last_sequence > line.sequence


def _first_sequence(frame: Frame) -> int:
    return frame.first_sequence


def _aborted(frame: Frame, reason: str) -> AbortedAnswer:
    text = f"{reason}; epoch {frame.epoch} is closed, go on under the next one"
    return AbortedAnswer(frame.producer, frame.epoch, frame.first_sequence, frame.count, text)


def _refused(frame: Frame, code: str, reason: str, retry: bool) -> RefusedAnswer:
    return RefusedAnswer(frame.producer, frame.epoch, frame.first_sequence, code, reason, retry)
