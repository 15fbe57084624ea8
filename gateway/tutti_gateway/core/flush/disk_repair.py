"""Repair of decided frames of the ordered log that this disk lost (see `tutti_gateway.core.disk_repair`)."""

from __future__ import annotations

from collections.abc import Iterator

from tutti_gateway.core.context import Context
from tutti_gateway.core.disk_repair import RangeRepair
from tutti_gateway.core.protocol.events import LogCorrupt
from tutti_gateway.core.protocol.messages import Fetch, Fetched
from tutti_gateway.core.view.peers import Peers


class LogRepair:
    """Repairs decided frames that the disk lost, with frames from live gateways that are in a view."""

    def __init__(self, context: Context, peers: Peers) -> None:
        self._outbox = context.outbox
        self._peers = peers
        self._repair = RangeRepair(peers, self._sources, self._request, context.outbox.repair_log)

    def on_corrupt(self, event: LogCorrupt) -> None:
        """Begin to repair a range of the log that the disk reports as lost."""
        self._repair.on_corrupt(event.first, event.last)

    def on_fetched(self, sender: int, message: Fetched) -> bool:
        """Write fetched frames at the positions that the disk lost. Return False if the repair does not need these frames."""
        return not message.view and self._repair.on_fetched(sender, message.first, message.frames)

    def beat(self) -> None:
        """Run one heartbeat: if a source does not answer, request the lost frames from another gateway."""
        self._repair.beat()

    def _sources(self, position: int) -> Iterator[int]:
        for peer in self._peers:
            beat = peer.beat
            if beat is not None and self._peers.fresh(peer.number) and beat.view and beat.frontier >= position:
                yield peer.number

    def _request(self, source: int, first: int, last: int) -> None:
        self._outbox.send(source, Fetch(0, first, last))
