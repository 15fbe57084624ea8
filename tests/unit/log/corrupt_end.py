"""A log whose end is corrupt, and what a start finds there."""

from __future__ import annotations

from pathlib import Path

from tests.unit.log.history import History, decide, expected, opened, other_boot, sample, seen
from tutti.log.files.layout import FRAMES_AT, list_positions
from tutti.log.files.options import LogOptions
from tutti.log.read.reader import LogReader
from tutti.log.read.scan import scan
from tutti_gateway.core.protocol.events import Recovered
from tutti_gateway.core.protocol.messages import Damage
from tutti_gateway.log.tools.verify import verify

OPTIONS = LogOptions(segment_bytes=64 << 10, prepared_segments=0, reserved_bytes=0, disk_low_bytes=0, snapshot_frames=12)
HISTORY = sample(120, size=4000, voters=3)
LAST = len(HISTORY.frames)
DECIDED = HISTORY.settled(70)


def marked(path: Path, history: History = HISTORY, decided: int = DECIDED) -> list[int]:
    """A log whose every frame was durable, and marked so; the first positions of its segments."""
    writer, _, close = opened(path, OPTIONS)
    writer.append(history.frames)
    writer.sync()
    decide(writer, history, 1, decided)
    while writer.idle():
        continue
    close()
    other_boot(path)
    return list_positions(str(path), "seg")


def spot(path: Path, position: int) -> tuple[Path, int]:
    """The file and the byte where a position stands."""
    first = max(first for first in list_positions(str(path), "seg") if first <= position)
    place = FRAMES_AT + sum(frame.size for frame in HISTORY.frames[first - 1 : position - 1])
    return path / "log" / f"{first:020d}.seg", place


def rot(path: Path, position: int, where: int = 5) -> Path:
    """Flip a bit in the header of a frame; its file."""
    file, place = spot(path, position)
    data = bytearray(file.read_bytes())
    data[place + where] ^= 1
    file.write_bytes(data)
    return file


def lost(first: int) -> Damage:
    last = HISTORY.frames[-1]
    return Damage(first, LAST, last.view, last.header_crc)


def start(path: Path) -> Recovered:
    _, recovered, close = opened(path, OPTIONS)
    close()
    return recovered


def whole(path: Path, history: History) -> None:
    """The log takes its decisions and reads as if nothing had happened."""
    writer, recovered, close = opened(path, OPTIONS)
    decide(writer, history, recovered.state.position + 1, len(history.frames))
    reader = LogReader(path)
    assert seen(scan(reader, 0, reader.frontier().offset)) == expected(history)
    assert verify(path).damage == []
    close()
