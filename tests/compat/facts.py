"""What must stay true of a directory that some release wrote, as plain values."""

from __future__ import annotations

import hashlib
from contextlib import closing
from pathlib import Path
from typing import Any

import msgspec
import orjson

from tests.unit.log.history import opened, seen
from tests.unit.log.lane_history import Owner
from tutti.data.frames.frame import Frame
from tutti.data.lane_name import LaneName
from tutti.log.files.lane_paths import lane_path
from tutti.log.read.reader import LogReader
from tutti.log.read.scan import scan
from tutti_gateway.core.protocol.events import Recovered
from tutti_gateway.log.lanes.lane_logs import LaneLogs
from tutti_gateway.log.tools.digest import digest
from tutti_gateway.log.tools.inspect import inspect
from tutti_gateway.log.tools.verify import verify


def read_facts(path: Path) -> dict[str, Any]:
    """What tools and readers find, with nothing changed."""
    checked = verify(path)
    with closing(LogReader(path)) as reader:
        start, frontier = reader.start, reader.frontier()
        rows = seen(scan(reader, start, frontier.offset))
        ticks = [list(tick) for tick in reader.ticks(start, frontier.offset)]
    return {
        "log": checked.log,
        "gateway": checked.gateway,
        "damage": [finding._asdict() for finding in checked.damage],
        "start": start,
        "frontier": [frontier.position, frontier.offset],
        "end": checked.end,
        "frames": checked.frames,
        "records": checked.records,
        "digest": digest(path).sha256,
        "rows": sum_of(rows),
        "ticks": ticks,
        "headers": sum_of([[info.position, info.kind, info.view, info.producer, info.epoch, info.size] for info in inspect(path)]),
    }


def start_facts(path: Path) -> dict[str, Any]:
    """What a start finds; it may change the directory, so give it a copy."""
    _, recovered, close = opened(path)
    close()
    return recovered_facts(recovered)


def recovered_facts(recovered: Recovered) -> dict[str, Any]:
    """A start's findings."""
    return {
        "log": recovered.log.hex(),
        "scalars": plain(recovered.scalars),
        "tail": [[frame.position, frame.view, frame.kind, frame.header_crc, frame.body_crc] for frame in recovered.tail],
        "damage": plain(recovered.damage),
        "state": plain(recovered.state),
    }


def lane_facts(path: Path) -> dict[str, Any]:
    """What a start finds of each lane, and what tools and readers find in it; give it a copy."""
    logs = LaneLogs(Owner(str(path), bytes(16)))
    found = {LaneName(log.origin, log.incarnation): log for log in logs.start()}
    logs.close()
    return {
        lane.text: {
            "log": plain(log),
            "told": logs.messages,
            "digest": digest(lane_path(str(path), lane)).sha256,
            "damage": [finding._asdict() for finding in verify(lane_path(str(path), lane)).damage],
        }
        for lane, log in found.items()
    }


def plain(value: object) -> Any:
    """Structs as dictionaries of their fields, so that a later release may add some (`only`)."""
    if isinstance(value, Frame):
        return {"header": value.packed_header().hex(), "progress": value.progress.hex(), "body": sum_of(bytes(value.body))}
    if isinstance(value, msgspec.Struct):
        return {name: plain(getattr(value, name)) for name in value.__struct_fields__}
    if isinstance(value, dict):
        return {str(key): plain(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [plain(one) for one in value]
    return value.hex() if isinstance(value, bytes) else value


def only(now: Any, then: Any) -> Any:
    """Of the facts of now those that an older release knew: fields that came later are left out, wherever they are."""
    if isinstance(now, dict) and isinstance(then, dict) and then.keys() <= now.keys():
        return {key: only(now[key], value) for key, value in then.items()}
    if isinstance(now, list) and isinstance(then, list) and len(now) == len(then):
        return [only(*pair) for pair in zip(now, then, strict=True)]
    return now


def sum_of(value: object) -> str:
    """SHA-256 of plain values, so that a fixture says in a line what may be long."""
    data = orjson.dumps(value, default=_bytes_as_text, option=orjson.OPT_SORT_KEYS)
    return hashlib.sha256(data).hexdigest()


def _bytes_as_text(value: object) -> str:
    if isinstance(value, bytes):
        return value.hex()
    raise TypeError(f"{type(value).__name__} has no plain form")
