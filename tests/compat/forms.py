"""Everything that is written down or said with a version, as this release does it."""

from __future__ import annotations

from gateway.archive import form
from gateway.data import frame, state, wire
from gateway.log import index, layout, snapshot, start
from gateway.node import recording
from gateway.transport import datagrams, interface


def versions() -> dict[str, int]:
    """Version of each form; docs/reference/formats.md says what each is."""
    return {
        "directory": layout.FORMAT_VERSION,
        "frame": frame.VERSION,
        "state": state.SNAPSHOT_VERSION,
        "index": index._VERSION,
        "snapshot": snapshot._VERSION,
        "start": start._VERSION,
        "record": recording.VERSION,
        "group": interface.PROTOCOL,
        "datagram": datagrams.VERSION,
        "client": wire.PROTOCOL,
        "archive": form.FORMAT,
    }
