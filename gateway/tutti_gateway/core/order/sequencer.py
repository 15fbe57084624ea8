"""The coordinator's half of *order*: the coordinator assigns one position to every frame (protocol/order, O8).

Sources: Sambhu 1999, Ban 2005.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import msgspec

from tutti import limits as common_limits
from tutti.data.frames.bodies import AbortBody, EpochBody, ForgetBody, OffsetsBody, TopicBody, encode_body
from tutti.data.frames.frame import SEQUENCED, STAGED, Frame, Kind
from tutti.errors import FormatError, invariant
from tutti_gateway.core import limits
from tutti_gateway.core.context import Context
from tutti_gateway.core.frame_runs import payload_intact, split_runs
from tutti_gateway.core.order.batch_admission import VERDICT, Verdict, relation, seen
from tutti_gateway.core.order.received_table import LineState, ProducerLine, ReceivedTable
from tutti_gateway.core.pending_window import FRAME_OVERHEAD_BYTES
from tutti_gateway.core.protocol.message_checks import batch
from tutti_gateway.core.protocol.messages import Ask, AskEpoch, AskForget, AskOffsets, AskTopic, Deny, Echo, Order, Refuse, Resend

_BATCH = int(Kind.BATCH)


class LowerLayer(Protocol):
    """The layer that appends ordered frames."""

    @property
    def low(self) -> str:
        """Reason why no batch can be ordered (a member's disk is low); empty if batches can be ordered."""

    def append(self, frames: Sequence[Frame]) -> None:
        """Append the next frames of the log to the window of undecided frames."""


class Sequencer:
    """Assigns positions to the batches of all origins, and to the frames that answer their requests.

    Attributes:
        ordered: the frames that this step has ordered, which `publish` sends.
    """

    def __init__(self, context: Context, received: ReceivedTable, below: LowerLayer) -> None:
        self._config = context.config
        self._outbox = context.outbox
        self._view_state = context.view_state
        self._window = context.window
        self._received = received
        self._below = below
        self.ordered: list[Frame] = []
        # producer -> origin -> epoch of rejected batches, which are requested again when the producer's frames are decided
        self._to_resend: dict[int, dict[int, int]] = {}
        self._epochs: dict[int, list[tuple[int, AskEpoch]]] = {}  # producer -> (origin, request) of each waiting epoch request
        self._epochs_count = 0
        self._window_was_full = False

    def installed(self) -> None:
        """Delete all waiting requests when a view begins or ends, because the origins send them again."""
        self.ordered, self._to_resend, self._epochs, self._epochs_count, self._window_was_full = [], {}, {}, 0, False

    def busy(self, number: int) -> bool:
        """True if a frame of the producer is undecided, or if this coordinator will request rejected batches of it again."""
        return number in self._received.lines or number in self._to_resend

    # Batches

    def on_forward(self, origin: int, frames: tuple[Frame, ...]) -> None:
        """Order the forwarded batches that are next in sequence, and handle the other batches by the table `VERDICT`."""
        window, received, epochs = self._window, self._received, self._epochs
        lines = received.lines
        # A member with a low disk votes NO to each batch, which costs an ABORT, so no batch is ordered (atomic, A9).
        if self._below.low:
            self._no_space(origin, frames, self._below.low)
            return
        view, end, chain = self._view_state.view, window.end, window.chain
        free_bytes = self._config.undecided_bytes_max - window.bytes
        free_frames = limits.BATCH_UNDECIDED_FRAMES_MAX - len(window.frames)
        ordered: list[Frame] = []
        number = -1
        line: ProducerLine | None = None
        awaited = False
        if origin != self._view_state.me:  # batches of this gateway's clients were validated at their arrival
            frames = tuple(filter(self._is_good, frames))
        for frame in frames:
            # Consecutive batches of one producer share one lookup, which keeps this loop fast.
            if frame.producer != number:
                number = frame.producer
                # A producer with a line has undecided frames, so no FORGET of it can be ordered.
                line, awaited = lines.get(number) or received.line(number), number in epochs
            if (
                line is None
                or awaited
                or line.state is not LineState.OPEN
                or frame.epoch != line.epoch
                or frame.first_sequence != line.sequence + 1
                or free_bytes <= 0
                or len(ordered) >= free_frames
            ):
                self._judge(origin, frame, line)
                continue
            transactional = frame.kind != _BATCH or frame.flags & STAGED
            if transactional and not self._may_stage(origin, frame, line):
                continue
            if not line.undecided:  # the table contains only lines with undecided frames, so this line is added now
                lines[number] = line
            end += 1
            frame.origin = origin
            frame.stamp(view, end, chain)
            chain = frame.header_crc
            line.extend(frame)
            if transactional:
                received.stage(frame)
            free_bytes -= frame.body_length + FRAME_OVERHEAD_BYTES
            ordered.append(frame)
        if ordered:
            received.dirty = received.dirty or any(not frame.staged for frame in ordered)
            self._below.append(ordered)
            self.ordered += ordered

    def _is_good(self, frame: Frame) -> bool:
        """True if the fields, the topic and the checksums of another gateway's batch are valid."""
        return not batch(frame) and self._received.topic_known(frame.topic) and payload_intact(frame)

    def _may_stage(self, origin: int, frame: Frame, line: ProducerLine) -> bool:
        """True if a staged batch, or a TXN that makes staged batches visible, may be ordered now.

        If the frame must not be ordered now, this method refuses it, or requests it again later. A TXN must wait until all frames
        of its producer are decided, and may contain only decided batches, so an ABORT never voids a TXN or a part of it
        (protocol/order, O31).
        """
        received, code, reason = self._received, "", ""
        if frame.kind != Kind.TXN:
            if received.staged_count >= common_limits.STAGED_BATCHES_MAX:
                code = "limit"
                reason = (
                    f"{common_limits.STAGED_BATCHES_MAX} staged batches of all producers wait for their transactions, which is the "
                    "limit: stage fewer, larger batches, or commit smaller transactions"
                )
        elif line.undecided:
            self._judge(origin, frame, line)
            return False
        else:
            try:
                reason = received.not_visible(frame, decided=True)
            except FormatError as error:
                reason = str(error)
            code = "staged"
        if reason:
            refusal = Refuse(self._view_state.view, frame.producer, frame.epoch, frame.first_sequence, code, reason, False)
            self._outbox.send(origin, refusal)
        return not reason

    def _no_space(self, origin: int, frames: tuple[Frame, ...], low: str) -> None:
        view = self._view_state.view
        for frame in frames:
            reason = f"no space for new messages: {low}; reads continue; send again when the disk has free space"
            self._outbox.send(origin, Refuse(view, frame.producer, frame.epoch, frame.first_sequence, "space", reason, True))

    def _judge(self, origin: int, frame: Frame, line: ProducerLine | None) -> None:
        """Ignore or refuse a batch that cannot be ordered now, or request it again later."""
        if line is None:
            return  # the producer was forgotten, and the origin answers its client from the FORGET in its log
        how = relation(frame.epoch, frame.first_sequence, frame.last_sequence, line.epoch, line.sequence)
        verdict = VERDICT[seen(line.state, line.number in self._epochs), how]
        if verdict is Verdict.REFUSE:
            reason = f"epoch {frame.epoch} of producer {frame.producer} has not begun ({line.epoch} is {line.state.value})"
            self._outbox.send(
                origin,
                Refuse(self._view_state.view, frame.producer, frame.epoch, frame.first_sequence, "epoch", reason, False),
            )
        elif verdict is not Verdict.IGNORE:
            # The verdict ORDER means that only a full window prevents the batch, so the window's next free space triggers a RESEND.
            self._window_was_full = self._window_was_full or verdict is Verdict.ORDER
            self._to_resend.setdefault(frame.producer, {})[origin] = frame.epoch
            if not line.undecided:
                self._request_resend(line)

    def _request_resend(self, line: ProducerLine) -> None:
        """Request rejected batches of a producer from their origins again, or wait if the window is full.

        All frames of the producer are decided, so no view change can undo the sequence in the request.
        """
        if line.state is not LineState.OPEN:
            self._to_resend.pop(line.number, None)  # the epoch has ended, and the origins find the outcome in their logs
        # If the window were still full, the coordinator would have to reject the batches again.
        elif self._window.full or self._below.low:
            self._window_was_full = True
        else:
            for origin, epoch in self._to_resend.pop(line.number, {}).items():
                if epoch == line.epoch:
                    message = Resend(self._view_state.view, line.number, epoch, line.sequence + 1)
                    self._outbox.send(origin, message)

    # Frames of the coordinator itself

    def order_frame(
        self, kind: Kind, body: msgspec.Struct, *, origin: int = 0, producer: int = 0, epoch: int = 0, topic: int = 0
    ) -> Frame:
        """Order a frame that is not a batch, and return the frame. `origin` is the gateway that requested it, 0 for this member."""
        invariant(self._view_state.coordinating, f"a {kind.name} is ordered by a member that does not coordinate")
        frame = Frame(
            kind,
            encode_body(body),
            producer=producer,
            epoch=epoch,
            topic=topic,
            origin=origin or self._view_state.me,
        )
        frame.stamp(self._view_state.view, self._window.end + 1, self._window.chain)
        self._received.apply(frame)
        self._below.append((frame,))
        self.ordered.append(frame)
        return frame

    def abort(self, frame: Frame, body: AbortBody) -> None:
        """Order an ABORT that voids the batch `frame` and closes the epoch of that batch."""
        self.order_frame(Kind.ABORT, body, producer=frame.producer, epoch=frame.epoch)

    # Requests

    def on_request(self, origin: int, ask: Ask) -> None:
        """Order the frame that answers a request, unless the log already holds such a frame or the window is full.

        The origin repeats the request until it finds the answer in its log or gets a denial.
        """
        if self._below.low:
            self._deny(origin, ask, "space", f"no space for new messages: {self._below.low}; reads continue", True)
        elif self._window.crowded:
            return
        elif isinstance(ask, AskEpoch):
            self._on_epoch_request(origin, ask)
        elif isinstance(ask, AskTopic):
            if ask.name in self._received.names.topics:
                return
            if len(self._received.names.topics) >= self._config.topics_max:
                self._deny(origin, ask, "limit", f"the log has {self._config.topics_max} topics; use one of them")
                return
            self.order_frame(Kind.TOPIC, TopicBody(ask.name), origin=origin, topic=self._received.next_topic)
        elif isinstance(ask, AskOffsets):
            self._on_offsets_request(origin, ask)
        elif isinstance(ask, AskForget):
            self._on_forget_request(origin, ask)

    def _deny(self, origin: int, ask: Ask, code: str, reason: str, retry: bool = False) -> None:
        self._outbox.send(origin, Deny(self._view_state.view, ask, code, reason, retry))

    def _on_epoch_request(self, origin: int, ask: AskEpoch) -> None:
        received = self._received
        number = received.names.producers.get(ask.name)
        if number is None:
            # Without this check, a late copy of a request could create a forgotten producer again (order, O26).
            if ask.epoch <= received.floor:
                return  # the origin answers its client when it finds the FORGET that raised the floor in its log
            if self._deny_if_ahead(origin, ask, received.floor):
                return
            if len(received.names.producers) >= self._config.producers_max:
                reason = f"the group has {self._config.producers_max} producers; remove some with `tutti producers forget`"
                self._deny(origin, ask, "limit", reason)
                return
            body = EpochBody(ask.name, ask.instance, 0, b"")
            self.order_frame(Kind.EPOCH, body, origin=origin, producer=received.next_producer, epoch=ask.epoch)
            return
        line = received.line(number)
        invariant(line is not None, f"producer {number} ({ask.name!r}) has a name but no entry")
        if line is None or line.epoch >= ask.epoch:
            return  # the origin finds the EPOCH frame in its log, and learns from it which instance owns the epoch
        if self._deny_if_ahead(origin, ask, max(line.epoch, received.floor)):
            return
        if not line.undecided:
            self._order_epoch(origin, line, ask)
            return
        waiting = self._epochs.setdefault(number, [])
        # Origins repeat their requests, so a request that already waits is not stored again.
        if (origin, ask) in waiting:
            return
        if self._epochs_count >= limits.WAITING_EPOCHS_MAX:
            if not waiting:
                del self._epochs[number]
            self._deny(
                origin,
                ask,
                "limit",
                f"{self._epochs_count} epochs wait for earlier messages, which is the limit; ask again later",
                True,
            )
            return
        # A waiting request blocks all batches of the old epoch, so a busy old instance cannot delay the new one (order, O19).
        waiting.append((origin, ask))
        self._epochs_count += 1

    def _deny_if_ahead(self, origin: int, ask: AskEpoch, before: int) -> bool:
        """Deny a request for an epoch that is too far above the epoch `before`. Return True if the request was denied.

        Without the limit, one client could use up the epoch numbers of all producers, because a FORGET raises the floor of all
        producers to the forgotten producer's epoch (protocol/order, O21).
        """
        if ask.epoch <= before + limits.EPOCHS_AHEAD_MAX:
            return False
        reason = f"epoch {ask.epoch} of producer {ask.name!r} does not follow: the next one is {before + 1}"
        self._deny(origin, ask, "epoch", reason)
        return True

    def _order_epoch(self, origin: int, line: ProducerLine, ask: AskEpoch) -> None:
        invariant(not line.undecided, f"an EPOCH of producer {line.number} is ordered before its earlier frames are decided")
        body = EpochBody(line.name, ask.instance, line.sequence, line.progress)
        self.order_frame(Kind.EPOCH, body, origin=origin, producer=line.number, epoch=ask.epoch)

    def _on_offsets_request(self, origin: int, ask: AskOffsets) -> None:
        state = self._window.state
        if ask.offset > state.next_offset or ask.frontier > state.position:
            return  # the coordinator decides first, so a request with a higher frontier or offset than its own is invalid
        known, new = state.readers, self._received.new_readers
        if self._received.last_commit(ask.reader) > ask.frontier:
            return  # the log holds this commit or a later one of the reader, so the origin finds its answer in its log
        # Each reader needs memory at every gateway, so the number of readers is limited.
        if ask.reader not in known and ask.reader not in new and len(known) + len(new) >= limits.READERS_MAX:
            self._deny(origin, ask, "limit", f"the log has the offsets of {limits.READERS_MAX} named readers; use one of them")
            return
        self.order_frame(Kind.OFFSETS, OffsetsBody({ask.reader: ask.offset}), origin=origin)

    def _on_forget_request(self, origin: int, ask: AskForget) -> None:
        received = self._received
        numbers = []
        for number in ask.producers:
            line = received.line(number)
            if line is None:
                continue  # already forgotten; the origin answers its client when all producers in the request are forgotten
            # A FORGET must not remove the entry of a producer that still has undecided frames.
            if self.busy(number):
                self._deny(origin, ask, "busy", f"producer {line.name!r} still sends; fence it first", True)
                return
            numbers.append(number)
        if numbers:
            self.forget(numbers, origin)

    def forget(self, numbers: Sequence[int], origin: int = 0) -> None:
        """Order a FORGET of producers. None of these producers may have undecided frames."""
        received = self._received
        lines = [line for line in map(received.line, numbers) if line is not None]
        invariant(not any(line.undecided for line in lines), f"producers {numbers} are forgotten with undecided frames")
        epochs = [line.epoch for line in lines]
        # The new floor rejects late requests for old epochs, so that no forgotten producer is created again (order, O26).
        body = ForgetBody(tuple(numbers), max([received.floor, *epochs]))
        self.order_frame(Kind.FORGET, body, origin=origin)

    # What is decided

    @property
    def waiting(self) -> bool:
        """True if `producer_resolved` may have something to do: requests for epochs or rejected batches wait."""
        return bool(self._epochs or self._to_resend)

    def producer_resolved(self, line: ProducerLine) -> None:
        """After a producer's last undecided frame is decided, order its waiting epoch, or request its rejected batches again."""
        waiting = self._epochs.pop(line.number, None)
        if waiting:
            self._epochs_count -= len(waiting)
            self._to_resend.pop(line.number, None)
            for origin, ask in waiting:
                self.on_request(origin, ask)
        elif line.number in self._to_resend:
            self._request_resend(line)

    def space_freed(self) -> None:
        """Request rejected batches again, if they were rejected because of a full window that now has space."""
        if self._window_was_full and not self._window.full and not self._below.low:
            self._window_was_full = False
            for number in list(self._to_resend):
                line = self._received.line(number)
                if line is None:
                    del self._to_resend[number]  # the producer was forgotten
                elif not line.undecided:
                    self._request_resend(line)

    # End of a step

    def publish(self) -> None:
        """Send the frames that this step ordered to all members.

        Each member gets complete frames, but only the headers of batches that the member has forwarded.
        """
        ordered, self.ordered = self.ordered, []
        orders: dict[tuple[int, int], list[Order]] = {}  # run -> its messages, shared by members so that each is encoded one time
        for member in self._view_state.others:
            first = 0
            echoed = False
            for index, frame in enumerate(ordered):
                # An origin has the bodies of its batches in its forward-table, so headers are enough (order, O10).
                own = frame.kind in SEQUENCED and frame.origin == member
                if own is not echoed:
                    self._multicast(member, ordered, (first, index), echoed, orders)
                    first, echoed = index, own
            self._multicast(member, ordered, (first, len(ordered)), echoed, orders)

    def _multicast(
        self, member: int, ordered: list[Frame], run: tuple[int, int], echoed: bool, orders: dict[tuple[int, int], list[Order]]
    ) -> None:
        view, frames = self._view_state.view, ordered[slice(*run)]
        if echoed:
            for first in range(0, len(frames), common_limits.FRAMES_A_MESSAGE_MAX):
                chunk = frames[first : first + common_limits.FRAMES_A_MESSAGE_MAX]
                self._outbox.send(member, Echo(view, b"".join([frame.header for frame in chunk])))
            return
        if run not in orders:
            orders[run] = [Order(view, chunk) for chunk in split_runs(frames)]
        for order in orders[run]:
            self._outbox.send(member, order)
