"""Proves, on real files, a rule that the simulator's disk takes for granted: a write leaves an invalid header behind it."""

from __future__ import annotations

from pathlib import Path

from tests.unit.log.history import opened, other_boot, sample
from tutti.log.files.layout import FRAMES_AT
from tutti.log.files.options import LogOptions

OPTIONS = LogOptions(segment_bytes=1 << 20, prepared_segments=0, reserved_bytes=0, disk_low_bytes=0)
HISTORY = sample(20, voters=3)
END = 10


def test_a_frame_of_a_torn_write_does_not_come_back_when_the_one_before_it_is_written_again(tmp_path: Path) -> None:
    frames = HISTORY.frames
    writer, _, close = opened(tmp_path, OPTIONS)
    writer.append(frames[:END])
    writer.sync()
    close()
    other_boot(tmp_path)
    (file,) = (tmp_path / "log").glob("*.seg")
    data = bytearray(file.read_bytes())
    # Of a write of two frames only the second one reached the disk when the power went.
    place = FRAMES_AT + sum(frame.size for frame in frames[: END + 1])
    second = frames[END + 1].to_bytes()
    data[place : place + len(second)] = second
    file.write_bytes(data)
    writer, recovered, close = opened(tmp_path, OPTIONS)
    assert list(recovered.tail)[-1] == frames[END - 1]
    writer.append(frames[END : END + 1])
    writer.sync()
    close()
    other_boot(tmp_path)
    _, recovered, close = opened(tmp_path, OPTIONS)
    close()
    assert list(recovered.tail)[-1] == frames[END]
