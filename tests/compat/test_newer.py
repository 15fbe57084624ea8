"""Proves what this release does with forms of a newer one: it refuses, naming both versions, and changes nothing; what it can make
again itself it makes again.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.compat.facts import only, read_facts
from tests.compat.make import current, unpack
from tests.unit.log.history import opened
from tutti.data.frames.frame import CRC_AT, HEADER_SIZE, VERSION, crc32c, header_chain
from tutti.data.log_state import SNAPSHOT_VERSION, LogState
from tutti.errors import FormatError, WrongDirectory
from tutti.log.files.layout import (
    FORMAT_VERSION,
    FRAMES_AT,
    HARD_STATE_FILE,
    IDENTITY,
    PAGE,
    SEGMENT_HEADER_SIZE,
    list_positions,
    segment_path,
    snapshot_path,
)
from tutti.log.files.log_start import START
from tutti.log.format.hard_state import _CRC_AT as SCALARS_CRC_AT
from tutti.log.format.hard_state import SLOTS
from tutti_gateway.cli.main import main
from tutti_gateway.node.replay import recording_format
from tutti_gateway.node.replay.rerun import replay_run
from tutti_gateway.transport.handshake import refusal_reason
from tutti_gateway.transport.interface import PROTOCOL, Introduction

U32 = struct.Struct("<I")
CHAIN_AT = 40  # in the header of a segment
STATE_AT = 44  # in a snapshot
HEADS = {"idx": 56, "snap": 40}  # bytes that the CRC of a head covers


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return unpack(current() / "trimmed.tar.xz", tmp_path / "data")


def raise_version(path: Path, at: int, sealed: range) -> None:
    """One more than it is, in a form whose CRC stands behind the bytes that it seals."""
    found = bytearray(path.read_bytes())
    U32.pack_into(found, at, U32.unpack_from(found, at)[0] + 1)
    U32.pack_into(found, sealed.stop, crc32c(bytes(found[sealed.start : sealed.stop])))
    path.write_bytes(found)


def newer_directory(data: Path) -> None:
    told = json.loads((data / IDENTITY).read_text())
    (data / IDENTITY).write_text(json.dumps(told | {"format": FORMAT_VERSION + 1, "new": "field"}))


def newer_segment(data: Path) -> None:
    last = list_positions(str(data), "seg")[-1]
    raise_version(Path(segment_path(str(data), last)), 4, range(SEGMENT_HEADER_SIZE - U32.size))


def newer_scalars(data: Path) -> None:
    for at in SLOTS:
        slot = (data / HARD_STATE_FILE).read_bytes()[at : at + PAGE]
        if any(slot):
            raise_version(data / HARD_STATE_FILE, at + 4, range(at, at + SCALARS_CRC_AT))


def newer_start(data: Path) -> None:
    raise_version(data / START, 4, range((data / START).stat().st_size - U32.size))


def newer_frame(data: Path) -> None:
    """The first frame of the last segment, in a chain that is good."""
    last = list_positions(str(data), "seg")[-1]
    path = Path(segment_path(str(data), last))
    found = bytearray(path.read_bytes())
    header = found[FRAMES_AT : FRAMES_AT + HEADER_SIZE]
    header[4] = VERSION + 1
    U32.pack_into(header, CRC_AT, header_chain(header, U32.unpack_from(found, CHAIN_AT)[0]))
    found[FRAMES_AT : FRAMES_AT + HEADER_SIZE] = header
    path.write_bytes(found)


@pytest.mark.parametrize(
    ("newer", "words"),
    [
        (newer_directory, f"has format {FORMAT_VERSION + 1}, but this release supports format {FORMAT_VERSION}"),
        (newer_segment, f"has format {FORMAT_VERSION + 1}, but this release supports format {FORMAT_VERSION}"),
        (newer_scalars, f"has format {FORMAT_VERSION + 1}, but this release supports format {FORMAT_VERSION}"),
        (newer_start, "has format 2, but this release supports format 1"),
        (newer_frame, f"has version {VERSION + 1} and kind"),
    ],
)
def test_a_directory_of_a_newer_release_is_refused_and_unchanged(
    data: Path, newer: Callable[[Path], None], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    newer(data)
    before = {path: path.read_bytes() for path in sorted((data / "log").iterdir()) if path.is_file()}
    with pytest.raises(WrongDirectory, match=words):
        opened(data)
    assert before == {path: path.read_bytes() for path in sorted((data / "log").iterdir()) if path.is_file()}
    assert main(["log", "verify", str(data)]) in (2, 4)
    assert words in capsys.readouterr().err


@pytest.mark.parametrize("kind", ["idx", "snap"])
def test_an_index_or_a_snapshot_of_a_newer_release_is_made_again(tmp_path: Path, kind: str) -> None:
    data = unpack(current() / "alone.tar.xz", tmp_path / "data")
    then = json.loads((current() / "alone.json").read_text())["read"]
    for path in (data / "log").glob(f"*.{kind}"):
        raise_version(path, 4, range(HEADS[kind]))
    assert only(read_facts(data), then) == then
    _, _, close = opened(data)
    close()
    assert only(read_facts(data), then) == then


def test_a_state_of_a_newer_release_is_refused_with_both_versions(data: Path) -> None:
    first = list_positions(str(data), "snap")[0]
    stored = bytearray(Path(snapshot_path(str(data), first)).read_bytes()[STATE_AT:])
    U32.pack_into(stored, 4, SNAPSHOT_VERSION + 1)
    U32.pack_into(stored, 12, crc32c(bytes(stored[16:]), crc32c(bytes(stored[:12]))))
    with pytest.raises(
        FormatError, match=rf"version {SNAPSHOT_VERSION + 1} is not supported \(this release supports {SNAPSHOT_VERSION}\)"
    ):
        LogState.from_bytes(bytes(stored))


def test_a_recorded_run_of_a_newer_form_is_refused(tmp_path: Path) -> None:
    start = bytearray(recording_format.start_bytes())
    U32.pack_into(start, 8, recording_format.VERSION + 1)
    (tmp_path / "a.run").write_bytes(start)
    with pytest.raises(
        FormatError, match=f"of format {recording_format.VERSION + 1}, but this release reads format {recording_format.VERSION}"
    ):
        replay_run(tmp_path / "a.run")


def test_a_gateway_of_a_newer_protocol_is_refused_with_both_versions_and_advice() -> None:
    mine = Introduction(release="1.0", group="test", gateway="g1", incarnation=bytes(16))
    theirs = Introduction(protocol=PROTOCOL + 1, release="2.0", group="test", gateway="g2", incarnation=bytes(range(16)))
    reason = refusal_reason(mine, theirs)
    assert f"'g2' speaks version {PROTOCOL + 1} of the protocol between gateways (release 2.0)" in reason
    assert f"'g1' version {PROTOCOL} (release 1.0): install the release of that one" in reason
