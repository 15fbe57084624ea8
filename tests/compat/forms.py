"""Everything that is written down or said with a version, as this release does it."""

from __future__ import annotations

from tutti.archive import layout as form
from tutti.data import client_protocol, log_state
from tutti.data.frames import frame
from tutti.log.files import layout, log_start
from tutti.log.format import index, snapshot
from tutti_gateway.node.replay import recording_format
from tutti_gateway.transport import interface
from tutti_gateway.transport.multicast import datagrams


def versions() -> dict[str, int]:
    """Version of each form; docs/reference/formats.md says what each is."""
    return {
        "directory": layout.FORMAT_VERSION,
        "frame": frame.VERSION,
        "state": log_state.SNAPSHOT_VERSION,
        "index": index._VERSION,
        "snapshot": snapshot._VERSION,
        "start": log_start._VERSION,
        "record": recording_format.VERSION,
        "group": interface.PROTOCOL,
        "datagram": datagrams.VERSION,
        "client": client_protocol.PROTOCOL,
        "archive": form.FORMAT,
    }
