"""Repair of decided lane frames that this disk lost, including frames of this gateway's own lane (see `core.disk_repair`).

Any connected gateway at which the frames are decided can be the source, whether or not it is the lane's origin.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from tutti.data.frames.frame import Frame
from tutti_gateway.core.disk_repair import Distances, RangeRepair
from tutti_gateway.core.lanes.outbox import LaneOutbox
from tutti_gateway.core.protocol.events import LaneCorrupt
from tutti_gateway.core.protocol.messages import LaneFetch, LaneFetched

Key = tuple[int, bytes]  # origin's number, incarnation of its disk


class LaneRepair:
    """Requests the lost frames of all lanes, with one open request for each lane.

    Args:
        ends: returns, for one lane, the decided end that each connected gateway has reported, by gateway number.
    """

    def __init__(self, outbox: LaneOutbox, distances: Distances, ends: Callable[[Key], Mapping[int, int]]) -> None:
        self._outbox = outbox
        self._distances = distances
        self._ends = ends
        self._lanes: dict[Key, RangeRepair] = {}

    def on_corrupt(self, event: LaneCorrupt) -> None:
        """Begin to repair a range of a lane that the disk reports as lost."""
        key = event.origin, event.incarnation
        # A report with `first` 0 means that all frames of the lane are readable again.
        if not event.first:
            self._lanes.pop(key, None)
            return
        if key not in self._lanes:
            self._lanes[key] = self._of(key)
        self._lanes[key].on_corrupt(event.first, event.last)

    def on_fetched(self, sender: int, message: LaneFetched) -> bool:
        """Write fetched frames at the positions that the disk lost. Return False if no repair needs these frames."""
        wanted = self._lanes.get((message.origin, message.incarnation))
        if wanted is None or not message.frames:
            return False
        return wanted.on_fetched(sender, message.frames[0].position, message.frames)

    def beat(self) -> None:
        """Run one heartbeat: if a source does not answer, request the lost frames from another gateway."""
        for wanted in self._lanes.values():
            wanted.beat()

    def _of(self, key: Key) -> RangeRepair:
        def sources(position: int) -> Iterator[int]:
            return (source for source, decided in self._ends(key).items() if decided >= position)

        def request(source: int, first: int, _: int) -> None:
            self._outbox.send(source, LaneFetch(*key, first))

        def write(frames: tuple[Frame, ...]) -> None:
            self._outbox.repair(key, frames)

        return RangeRepair(self._distances, sources, request, write)
