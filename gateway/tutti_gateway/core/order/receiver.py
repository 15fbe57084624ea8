"""The member's half of *order*: frames arrive in any order, and the member appends them in sequence (Sambhu 1999, "Members").

A frame that arrives before an earlier one waits in the hold-back queue.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import google_crc32c

from tutti import limits as common_limits
from tutti.data.frames.frame import CRC_AT, HEADER_SIZE, Frame, Kind, chained, decode_header, payload_crc
from tutti.errors import FormatError
from tutti_gateway.core import limits
from tutti_gateway.core.context import Context
from tutti_gateway.core.frame_runs import payload_intact
from tutti_gateway.core.order.forward_table import ForwardTable
from tutti_gateway.core.order.received_table import ReceivedTable
from tutti_gateway.core.pending_window import FRAME_OVERHEAD_BYTES, weight
from tutti_gateway.core.protocol.messages import Echo, Order, Repair
from tutti_gateway.core.range_map import Range, RangeMap


class LowerLayer(Protocol):
    """The layer that appends frames in sequence."""

    def append(self, frames: Sequence[Frame]) -> None:
        """Append the next frames of the log to the window of undecided frames."""


class Receiver:
    """Receives ORDER and ECHO messages of the view's coordinator, and repairs of every member.

    Attributes:
        gaps: the missing positions: neither appended nor buffered, and at most `highest`.
        in_sequence: number of frames of the coordinator that were appended without the hold-back queue.
        discarded: number of discarded frames. A frame is discarded if it is corrupt, invalid, of another view, above the limit,
            different from this member's copy, or does not continue the chain. The position of a discarded frame counts as missing.
        streamed: the highest position that the coordinator itself has sent or announced in this view.
        highest: the highest position that any member has announced in this view.
    """

    def __init__(self, context: Context, received: ReceivedTable, forward: ForwardTable, below: LowerLayer) -> None:
        self._outbox = context.outbox
        self._view_state = context.view_state
        self._window = context.window
        self._received = received
        self._forward = forward
        self._below = below
        self._buffered: dict[int, Frame] = {}
        self._buffered_bytes = 0
        self._buffered_bytes_max = context.config.undecided_bytes_max + limits.BUFFERED_MORE_BYTES_MAX
        undecided_bytes = max(context.config.undecided_bytes_max, limits.UNDECIDED_BYTES_CONFIG_MIN)
        # A coordinator with the same configuration never has more undecided bytes than this limit.
        self._window_bytes_max = undecided_bytes + limits.BUFFERED_MORE_BYTES_MAX
        self.gaps: RangeMap[None] = RangeMap()
        self.in_sequence = self.discarded = 0
        self.streamed = self.highest = 0
        self._invalid = ""  # reason why the last invalid frame was rejected, until it is reported; otherwise empty

    def installed(self) -> None:
        """Delete the buffered frames and gaps of the previous view, because the new view assigns these positions again."""
        self._buffered, self._buffered_bytes = {}, 0
        self.gaps.clear()
        self.streamed = self.highest = 0

    def on_order(self, sender: int, message: Order) -> None:
        """Buffer or append complete frames from the coordinator."""
        if self._counts(sender, message.view) and message.frames:
            self._accept(sender, message)
            self._stream_reached(message.frames[-1].position)

    def on_repair(self, sender: int, message: Repair) -> None:
        """Buffer or append ordered frames of this view that a member sends as a repair."""
        view_state = self._view_state
        # The coordinator has ordered all frames of the view, so it needs no repair.
        if view_state.current(message.view) and sender in view_state.others and not view_state.coordinating:
            self._accept(sender, message)

    def log_end_reported(self, sender: int, end: int) -> None:
        """Handle a report that the log of a member of this view reaches `end`. Missing frames up to `end` are lost or late.

        The report is ignored if `end` is so far above the last position in this log that it must be wrong.
        """
        view_state = self._view_state
        if not view_state.coordinating and end <= self._window.end + limits.BUFFERED_FRAMES_MAX:
            self._announce(end)
            # Messages of the coordinator arrive in order, so its frames up to `end` have arrived or are lost (repair, R2).
            if sender == view_state.coordinator:
                self._stream_reached(end)

    def _accept(self, sender: int, message: Order | Repair) -> None:
        view = self._view_state.view
        frames = message.frames
        if not self._buffered:
            frames = frames[self._append_in_sequence(frames) :]
        for frame in frames:
            # A frame of another view may be from a truncated log, and this view may have a different frame at that position.
            if frame.view != view:
                self.discarded += 1
            elif payload_intact(frame):
                self._buffer(frame)
            else:
                self._missed(frame.position)
        self._drain()
        self._report_invalid(sender, message)

    def _append_in_sequence(self, frames: Sequence[Frame]) -> int:
        """Append the frames of a message up to the first frame that needs `_buffer` or `_drain`. Return their number.

        In a group without loss, this method appends all frames of all messages.
        """
        view, window, apply = self._view_state.view, self._window, self._received.apply
        end, chain = window.end, window.chain
        crc_of, extend = google_crc32c.value, google_crc32c.extend
        free_frames, free_bytes = self._window_space()
        appended = 0
        try:
            for frame in frames:
                body = frame.body
                if (
                    frame.position != end + 1
                    or frame.view != view
                    or free_bytes <= 0
                    or appended >= free_frames
                    # From here on as `payload_intact` and `chained`, without calls for a small body without progress.
                    or (crc_of(body) if body.__class__ is bytes and not frame.progress else payload_crc(frame.progress, body))
                    != frame.body_crc
                    or extend(chain, frame.header[:CRC_AT]) != frame.header_crc
                ):
                    break
                apply(frame)
                end, chain = end + 1, frame.header_crc
                free_bytes -= frame.body_length + FRAME_OVERHEAD_BYTES
                appended += 1
        except FormatError:
            pass  # `_drain` finds the same fault, and counts the frame as missing
        if appended:
            self.in_sequence += appended
            self.gaps.remove(window.end + 1, end)
            self.highest = max(self.highest, end)
            self._below.append(frames[:appended])
        return appended

    def on_echo(self, sender: int, message: Echo) -> None:
        """Handle headers of ordered batches from this member, and take the bodies from the forward-table."""
        if not self._counts(sender, message.view):
            return
        for at in range(0, len(message.headers), HEADER_SIZE):
            try:
                echoed = decode_header(message.headers, at)
            except FormatError:
                self.discarded += 1
                break
            own = self._forward.find(echoed)
            if echoed.view != message.view:
                self.discarded += 1
            elif own is None or own.body_crc != echoed.body_crc or own.body_length != echoed.body_length:
                # The producer has sent other records with this sequence through another gateway, so repair must fetch the body.
                self._missed(echoed.position)
            else:
                # If CRC and length are equal, this member's copy is the body that was ordered (order, O10).
                echoed.body, echoed.progress = own.body, own.progress
                self._buffer(echoed)
            self._stream_reached(echoed.position)
        self._drain()
        self._report_invalid(sender, message)

    def _counts(self, sender: int, view: int) -> bool:
        view_state = self._view_state
        return view_state.current(view) and sender == view_state.coordinator and sender != view_state.me

    def _buffer(self, frame: Frame) -> None:
        position = frame.position
        if position <= self._window.end or position in self._buffered:
            return
        full = self._buffered_bytes > self._buffered_bytes_max
        # Even above the limit, the next frame in sequence is accepted, because all buffered frames wait for that frame.
        if position > self._window.end + (1 if full else limits.BUFFERED_FRAMES_MAX):
            self._missed(position)
            return
        if position <= self.highest:
            self.gaps.remove(position, position)
        else:  # the log has no gaps, so a frame at a position proves that frames at all earlier positions exist (repair, R1)
            self._announce(position - 1)
            self.highest = position
        self._buffered[position] = frame
        self._buffered_bytes += weight(frame)
        # Above the limit, this frame is the next in sequence. Appending it and its successors frees memory.
        if full:
            self._drain()

    def _missed(self, position: int) -> None:
        """Count the frame at the position as missing, so that repair fetches the frame."""
        self._announce(position)
        self.discarded += 1

    def _is_plausible(self, position: int) -> bool:
        """True if a correct coordinator, which limits undecided frames, can have ordered a frame at the position."""
        return position <= self._window.end + 2 * limits.BUFFERED_FRAMES_MAX

    def _stream_reached(self, position: int) -> None:
        """Advance `streamed` to the position, unless the position is so high that it must be wrong."""
        if position > self.streamed and self._is_plausible(position):
            self.streamed = position

    def _announce(self, end: int) -> None:
        """Advance `highest` to `end`, and count the positions between them as missing."""
        known = max(self.highest, self._window.end)
        if end > known and self._is_plausible(end):
            self.gaps.put(known + 1, end, None)
            self.highest = end

    def decided(self) -> None:
        """Append buffered frames after the frontier has moved, because the window may have space again."""
        if self._buffered and self._view_state.current(self._view_state.view):
            self._drain()

    def _window_space(self) -> tuple[int, int]:
        """Return the free space in the window of undecided frames: a number of frames, and an approximate number of bytes.

        The coordinator has the same limit, but counts from its own frontier. A member that receives frames but no CONFIRM reaches
        the limit first, and then neither appends nor votes. Without that member's votes, the coordinator decides nothing until the
        member has received the missing CONFIRM (protocol/atomic, A4).
        """
        return common_limits.UNDECIDED_FRAMES_MAX - len(self._window.frames), self._window_bytes_max - self._window.bytes

    def _drain(self) -> None:
        """Append buffered frames in sequence while the window has space.

        A VIEW frame is appended even to a full window, because its decision decides all earlier frames and so frees the window.
        """
        buffered, end, chain = self._buffered, self._window.end, self._window.chain
        free_frames, free_bytes = self._window_space()
        run: list[Frame] = []
        while buffered:
            frame = buffered.get(end + 1)
            if frame is None or ((free_bytes <= 0 or len(run) >= free_frames) and frame.kind != Kind.VIEW):
                break
            del buffered[end + 1]
            size = weight(frame)
            self._buffered_bytes -= size
            free_bytes -= size
            # A frame that does not continue the chain may be from a truncated log, so it counts as missing and is requested again.
            if not chained(frame, chain):
                self.gaps.put(end + 1, end + 1, None)
                self.discarded += 1
                break
            try:
                self._received.apply(frame)
            except FormatError as error:
                self.gaps.put(end + 1, end + 1, None)
                self.discarded += 1
                self._invalid = str(error)
                break
            run.append(frame)
            end, chain = frame.position, frame.header_crc
        if run:
            self._below.append(run)

    def _report_invalid(self, sender: int, message: Order | Repair | Echo) -> None:
        """Report a frame that continues the chain but is invalid. The frame is not appended, and repair requests it again.

        A single message does not show whether the coordinator or this member is wrong, so no member halts. This member votes
        neither for that frame nor for later frames, so the next view excludes this member. The excluded member then copies the log
        that the other members decide.
        """
        if self._invalid:
            self._outbox.drop(message, sender, self._invalid)
            self._invalid = ""

    def missing(self) -> list[Range]:
        """Return the lowest ranges of missing positions that repair must request."""
        # If the window of a view that decides is full, this member could not append the frames, so it requests none.
        if not self.gaps or (self._view_state.primary and min(self._window_space()) <= 0):
            return []
        return [(first, last) for first, last, _ in self.gaps.lowest(limits.REPAIR_RANGES_MAX)]
