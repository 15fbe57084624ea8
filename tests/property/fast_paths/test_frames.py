"""Properties of the fast paths for many frames at once: runs of messages, sizes, encoded messages, receipts and index rows."""

from __future__ import annotations

from pathlib import Path
from random import Random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.property.core.test_codec import frames
from tests.property.log.histories import histories
from tests.sim.mutants.patch import Edit, applied
from tests.unit.log.history import History, write_log
from tutti import limits as common_limits
from tutti.data.client_protocol import Committed, decode_receipts, encode_receipts
from tutti.data.frames import frame as frame_module
from tutti.data.frames.frame import CRC_COPY_BELOW, Frame, Kind, payload_crc, sizes_of
from tutti.log.files.options import LogOptions
from tutti.log.format.index import LONG_AGO, ROW, IndexWriter
from tutti.zmtp.framing import COMMAND, MORE, encode_message, frame_header
from tutti.zmtp.framing import frame as zmtp_frame
from tutti_gateway.core import limits
from tutti_gateway.core.frame_runs import split_runs
from tutti_gateway.core.pending_window import weight
from tutti_gateway.core.protocol.messages import Order
from tutti_gateway.log.write import indexer
from tutti_gateway.transport import codec

OPTIONS = LogOptions(segment_bytes=32 << 10, prepared_segments=0, reserved_bytes=0, disk_low_bytes=0, snapshot_frames=10)
NO_FAST_BODY = Edit(
    codec, "encode", "if not frame.progress and not frame.body_length & 7 and frame.body_length <= joined_max:", "if False:"
)
NO_FAST_CRC = Edit(frame_module, "payload_crc", "if not progress and body.__class__ is bytes:", "if False:")


@given(st.lists(st.integers(0, 3000), max_size=12), st.integers(1, 12), st.data())
def test_runs_are_as_long_as_the_limits_allow(sizes: list[int], frames_max: int, data: st.DataObject) -> None:
    run = [Frame(Kind.BATCH, bytes(size)) for size in sizes]
    total = sum(map(weight, run))
    bytes_max = data.draw(st.sampled_from([total - 1, total, total + 1, 1000, 5000]))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(common_limits, "FRAMES_A_MESSAGE_MAX", frames_max)
        found = list(split_runs(run, bytes_max))
    wanted: list[list[Frame]] = []
    for frame in run:
        if not wanted or len(wanted[-1]) == frames_max or sum(map(weight, [*wanted[-1], frame])) > bytes_max:
            wanted.append([])
        wanted[-1].append(frame)
    assert found == [tuple(one) for one in wanted]


@given(st.lists(frames(), max_size=5), st.sampled_from([0, 7, CRC_COPY_BELOW - 1, CRC_COPY_BELOW, 5000]))
def test_sizes_and_checksums_are_those_of_each_frame(run: list[Frame], size: int) -> None:
    run.append(Frame(Kind.BATCH, bytes(size)))
    assert sizes_of(run) == [frame.size for frame in run]
    fast = [payload_crc(frame.progress, body) for frame in run for body in (frame.body, memoryview(frame.body))]
    with applied([NO_FAST_CRC]):
        assert fast == [payload_crc(frame.progress, frame.body) for frame in run for _ in range(2)]


@given(st.integers(0, 2**32), st.booleans())
@settings(max_examples=60)
def test_a_message_has_the_bytes_of_each_frame_and_decodes_to_them(seed: int, single_part: bool) -> None:
    chance = Random(seed)
    large = limits.JOINED_BODY_BYTES_MAX
    sizes = (0, 1, 7, 8, 100, CRC_COPY_BELOW - 1, CRC_COPY_BELOW, large - 1, large, large + 1, large + 8)
    run = []
    for position in range(1, chance.randint(2, 6)):
        progress = bytes(chance.choice((0, 0, 1, 8)))
        one = Frame(Kind.BATCH, chance.randbytes(chance.choice(sizes)), progress=progress, producer=1, epoch=1, count=1)
        if chance.random() < 0.8:
            one.stamp(1 << 16 | 1, position, 7)
        run.append(one)
    message = Order(9, tuple(run))
    parts = codec.encode(message, single_part=single_part)
    with applied([NO_FAST_BODY]):
        assert parts == codec.encode(message, single_part=single_part)
    again = codec.decode([bytes(part) for part in parts])
    assert isinstance(again, Order)
    assert list(again.frames) == run
    assert all(isinstance(one.body, bytes) for one in again.frames if one.body_length < CRC_COPY_BELOW)


def test_as_many_empty_frames_as_a_message_may_have_are_one_run() -> None:
    run = [Frame(Kind.BATCH, b"") for _ in range(common_limits.FRAMES_A_MESSAGE_MAX + 1)]
    assert list(map(len, split_runs(run[1:]))) == [common_limits.FRAMES_A_MESSAGE_MAX]
    assert list(map(len, split_runs(run))) == [common_limits.FRAMES_A_MESSAGE_MAX, 1]
    assert list(split_runs([])) == []


@given(st.builds(Committed, *[st.integers(0, 2**32 - 1)] * 4, st.integers(-1, 2**62)))
def test_a_lone_receipt_has_the_bytes_of_a_receipt_among_others(one: Committed) -> None:
    lone, both = encode_receipts([one]), encode_receipts([one, one])
    head, row = both[:4] + (1).to_bytes(4, "little"), both[8 : 8 + (len(both) - 8) // 2]
    assert lone == head + row
    assert list(decode_receipts(lone)) == list(decode_receipts(both))[:1]


@given(st.integers(0, 700), st.sampled_from([0, MORE, COMMAND]), st.booleans())
def test_a_frame_for_the_wire_has_its_header_and_its_data(size: int, flags: int, view: bool) -> None:
    data = bytes(range(256)) * 3
    body = memoryview(data[:size]) if view else data[:size]
    assert zmtp_frame(body, flags) == frame_header(size, flags) + data[:size]


@given(st.sampled_from([0, 1, 255, 256, 4000, 100_000]), st.integers(0, 3))
def test_a_message_of_one_part_has_the_bytes_of_its_frame(size: int, before: int) -> None:
    message = encode_message([b"part"] * before + [bytes(size)])
    wanted = zmtp_frame(b"part", MORE) * before + zmtp_frame(bytes(size))
    assert (b"".join(map(bytes, message.buffers)), message.size) == (wanted, len(wanted))
    assert size > 4000 or len(message.buffers) == 1


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("logs")


@given(history=histories(max_moves=30), step=st.integers(1, 60), chance=st.randoms(use_true_random=False))
@settings(max_examples=25)
def test_index_rows_of_many_frames_equal_those_of_few(folder: Path, history: History, step: int, chance: Random) -> None:
    for _ in range(chance.randint(0, 2)):
        staged = [history.batch("s", chance.choice(["t", "u"]), [b"x"] * chance.randint(1, 3), staged=True) for _ in range(2)]
        history.tick()
        history.batch("q", "t", [b"between"])
        history.txn("s", staged)
        void = history.batch("v", "t", [b"void"])
        history.abort(void.position)
        history.epoch("v")
    written = []
    append = IndexWriter.append

    def checked(self: IndexWriter, data: bytes, offset: int, next_offset: int, max_timestamp: int) -> None:
        rows = np.frombuffer(data, ROW)
        visible = rows["max_timestamp"][rows["count"] > 0]
        assert max_timestamp == (int(visible.max()) if len(visible) else LONG_AGO)
        append(self, data, offset, next_offset, max_timestamp)

    for many in (1, 10**9):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(IndexWriter, "append", checked)
            patch.setattr(indexer, "_MANY", many)
            path = folder / str(sum(1 for _ in folder.iterdir()))
            write_log(path, history, OPTIONS, step=step)
        files = [file for file in sorted((path / "log").iterdir()) if file.suffix in (".idx", ".snap")]
        written.append({file.name: file.read_bytes() for file in files})
    assert len(written[0]) > 0
    assert written[0] == written[1]
