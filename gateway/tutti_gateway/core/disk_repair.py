"""Repair of decided frames that the disk lost, with frames that other gateways send in the background (protocol/flush, F25).

The disk reports one lost range at a time, and reports again after each write. Only the disk can check whether the fetched frames
continue the chain on the disk. This module asks one gateway after another, and limits the wait for each answer. A decided frame is
equal at all gateways, so each gateway that has the frame can be the source. The ordered log and each lane have separate
`RangeRepair` objects.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Protocol

from tutti.data.frames.frame import Frame, chained
from tutti_gateway.core import limits
from tutti_gateway.core.frame_runs import payload_intact


class Distances(Protocol):
    """Distances to other gateways."""

    def distance_us(self, number: int) -> int:
        """Return the one-way distance to the gateway, in microseconds."""

    def round_beats(self) -> int:
        """Return the number of heartbeats in a round trip to the furthest live gateway; 0 if it takes less than one heartbeat."""


class RangeRepair:
    """Requests lost frames from the nearest gateway that has them, and after a failure from the next nearest one.

    Only one request is open at a time.

    Args:
        sources: returns the live gateways that have reported a position as decided.
        request: requests the frames from a first to a last position from one gateway.
        write: writes fetched frames at the positions that the disk lost.

    Attributes:
        first, last: first and last position of the range that the disk lost; both are 0 if nothing is lost.
    """

    __slots__ = (
        "_distances",
        "_pause_beats",
        "_requested_from",
        "_send_request",
        "_silent",
        "_sources",
        "_unable",
        "_write",
        "_written_from",
        "first",
        "last",
    )

    def __init__(
        self,
        distances: Distances,
        sources: Callable[[int], Iterable[int]],
        request: Callable[[int, int, int], None],
        write: Callable[[tuple[Frame, ...]], None],
    ) -> None:
        self._distances = distances
        self._sources = sources
        self._send_request = request
        self._write = write
        self.first = self.last = 0
        self._requested_from = 0  # gateway with an open request; 0 if there is none
        self._silent = 0  # heartbeats since the request
        self._pause_beats = 0  # heartbeats left until all gateways are asked again, after all of them have failed
        self._written_from = 0  # gateway whose frames the disk is writing
        self._unable: set[int] = set()  # gateways that did not return valid frames

    def on_corrupt(self, first: int, last: int) -> None:
        """Begin to repair the lost range that the disk reports; 0 and 0 mean that nothing is lost."""
        if self._written_from and first == self.first:
            self._unable.add(self._written_from)  # the write repaired nothing, so the source of its frames may have wrong ones
        else:
            self._unable.clear()
        self.first, self.last = first, last
        self._written_from = self._requested_from = self._pause_beats = 0
        self._request_next()

    def on_fetched(self, sender: int, first: int, frames: tuple[Frame, ...]) -> bool:
        """Write fetched frames that start at position `first` to the disk. Return False if this repair needs no such frames."""
        # The disk repairs from the first lost position on, so an answer for any other position is out of date.
        if self._written_from or not self.first or first != self.first:
            return False
        good = self._valid_prefix(frames)
        if good:
            self._written_from, self._requested_from = sender, 0
            self._write(good)
            return True
        self._unable.add(sender)
        if sender == self._requested_from:
            self._requested_from = 0
            self._request_next()
        return True

    def _valid_prefix(self, frames: tuple[Frame, ...]) -> tuple[Frame, ...]:
        """Return the frames from the first lost position on, up to the first frame that is corrupt or breaks the chain."""
        good: list[Frame] = []
        for frame in frames:
            # The core does not have the frame before the range, so only the disk can check the chain of the first frame.
            following = not good or chained(frame, good[-1].header_crc)
            if frame.position != self.first + len(good) or frame.position > self.last or not following or not payload_intact(frame):
                break
            good.append(frame)
        return tuple(good)

    def beat(self) -> None:
        """Run one heartbeat: ask the next gateway if the current one does not answer.

        If all gateways have failed, pause, and then ask all of them again.
        """
        if not self.first or self._written_from:
            return
        if self._requested_from:
            self._silent += 1
            patience = limits.RESEND_HEARTBEATS + 2 * self._distances.round_beats()
            if self._silent < patience and self._requested_from in self._sources(self.first):
                return
            self._unable.add(self._requested_from)
            self._requested_from = 0
        if self._pause_beats:
            self._pause_beats -= 1
            if not self._pause_beats:
                self._unable.clear()
        if not self._pause_beats:
            self._request_next()

    def _request_next(self) -> None:
        if not self.first:
            return
        sources = [(self._distances.distance_us(number), number) for number in self._sources(self.first)]
        able = [source for source in sources if source[1] not in self._unable]
        if able:
            self._requested_from, self._silent = min(able)[1], 0
            self._send_request(self._requested_from, self.first, self.last)
        # A source may be able to read the frames later, so all of them get another request after a pause.
        elif sources:
            self._pause_beats = limits.REPAIR_WAIT_HEARTBEATS
