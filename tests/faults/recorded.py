"""What is in the recordings of gateways."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

from tutti_gateway.core.protocol.codec import decode_lean_event
from tutti_gateway.core.protocol.events import Event
from tutti_gateway.node.replay.recording_format import Recording


def events_of(path: Path) -> list[Event]:
    """The events of a run, in order; also of one that is being recorded, as far as it is written."""
    with closing(Recording(path)) as recording:
        return [decode_lean_event(step.event) for step in recording]


def kinds(path: Path) -> set[type]:
    """Which events there are: that is certain of a load, how many depends on how much each drain of the machine finds."""
    return {type(event) for event in events_of(path)}
