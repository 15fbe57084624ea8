"""Corrupts the files of a log for tests."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

from tests.unit.log.history import History
from tutti.data.frames.frame import Frame, Kind
from tutti.log.read.reader import LogReader


def place_of(path: Path, position: int) -> tuple[Path, int]:
    """Return the file of a frame and its byte position there."""
    with closing(LogReader(path)) as reader:
        ((view, rows),) = reader.positions(position, position)
        return Path(view.path), int(rows["file_position"][0])


def flip(file: Path, at: int) -> None:
    """Flip one bit of a file."""
    data = bytearray(file.read_bytes())
    data[at] ^= 4
    file.write_bytes(data)


def batches_of(history: History) -> list[Frame]:
    """Return the batches that are not aborted."""
    return [frame for frame in history.frames if frame.kind == Kind.BATCH and frame.position not in history.void]


def rotten_indexes(path: Path) -> None:
    """Flip a bit of an offset in each sealed index."""
    for file in (path / "log").glob("*.idx"):
        data = bytearray(file.read_bytes())
        if data[0]:  # sealed
            data[64 + 16] ^= 4
            file.write_bytes(data)


def flip_frame(path: Path, position: int, byte: int) -> None:
    """Flip one bit of a frame, `byte` bytes after its start."""
    file, place = place_of(path, position)
    flip(file, place + byte)
