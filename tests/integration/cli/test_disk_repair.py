"""Tests of a gateway of three that lost a part of its log on disk: it repairs itself from the others while clients continue. One
that starts on a copy of its directory catches up, and votes again after an operator's command.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from tests.support.commands import WAIT_S, shell, tutti
from tests.support.running_group import RunningGroup
from tests.support.waiting import wait_until
from tutti import Reader
from tutti.data.frames.frame import HEADER_SIZE, Kind, padded
from tutti.log.files.layout import FRAMES_AT, read_header
from tutti.log.format.frame_iterator import SegmentMap, scan_frames
from tutti.log.read.reader import LogReader

BATCHES = 40


@pytest.fixture(scope="module")
def group(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningGroup]:
    with RunningGroup(tmp_path_factory.mktemp("mending")) as running:
        for number in range(BATCHES):
            lines = b"".join(b"%d-%d-%s\n" % (number, line, b"x" * 100) for line in range(200))
            assert tutti("produce", "--topic", "t", given=lines, url=running.url).code == 0
        yield running


def flip(directory: Path, share: float, *, header: bool) -> int:
    """Flip a bit of a frame in the first segment; its position."""
    file = directory / "log" / f"{1:020d}.seg"
    chain = read_header(str(directory), 1).chain
    found = scan_frames(SegmentMap(str(file), 1), FRAMES_AT, 1, chain)
    first = int(len(found.file_positions) * share) + 1
    frame = next(frame for position in range(first, found.position) if (frame := found.frame(position)).count)
    at = found.file_positions[frame.position - 1] + (20 if header else HEADER_SIZE + padded(len(frame.progress)) + 40)
    with file.open("r+b") as opened:
        opened.seek(at)
        byte = opened.read(1)[0]
        opened.seek(at)
        opened.write(bytes([byte ^ 16]))
    return frame.position


@pytest.mark.parametrize(("name", "header"), [("g2", False), ("g3", True)], ids=["a body", "a header"])
def test_corruption_during_downtime_is_repaired_after_the_start(group: RunningGroup, name: str, header: bool) -> None:
    url, directory = group[name].url, group[name].data
    frontier = tutti("status", "--json", url=group.url).json["frontier"]
    wait_until(lambda: tutti("status", "--json", url=url).json["frontier"] == frontier)
    group[name].kill()
    flip(directory, 0.3, header=header)
    damaged = shell("log", "verify", str(directory))
    assert damaged.code == 4
    assert "in a group, the running gateway fetches it from another gateway" in damaged.err
    assert tutti("produce", "--topic", "t", given=b"while it is down\n", url=group.url).code == 0
    group[name].start()

    def mended() -> bool:
        done = tutti("status", "--json", url=url)
        damage = done.json["disk"]["damage"] if done.code == 0 else {}
        return bool(done.code == 0 and done.json["frontier"] > frontier and not damage["lost"] and damage["rounds"])

    wait_until(mended)
    if not header:
        assert tutti("status", "--json", url=url).json["disk"]["damage"]["mended_frames"] == 1
    verified = shell("log", "verify", str(directory))
    assert verified.code == 0, verified.out
    told = [shell("log", "digest", str(group[one].data), "--end", str(frontier)).lines[0] for one in ("g1", name)]
    assert told[0].split()[0] == told[1].split()[0]


def test_a_corrupt_topic_file_is_reported_and_repaired_when_read(group: RunningGroup) -> None:
    """Proves it for a topic whose records are intact, and whose frame with the topic's number is corrupt."""
    assert tutti("produce", "--topic", "late", given=b"1\n2\n3\n", url=group.url).code == 0
    url, directory = group["g3"].url, group["g3"].data
    frontier = tutti("status", "--json", url=group.url).json["frontier"]
    wait_until(lambda: tutti("status", "--json", url=url).json["frontier"] == frontier)
    with closing(LogReader(directory)) as reader:
        for view, rows in reader.positions(1, reader.frontier().position):
            for row in rows[rows["kind"] == Kind.TOPIC]:
                file, place = Path(view.path), int(row["file_position"])
    mended = tutti("status", "--json", url=url).json["disk"]["damage"]["mended_frames"]
    with file.open("r+b") as opened:
        opened.seek(place + HEADER_SIZE + 3)
        byte = opened.read(1)[0]
        opened.seek(place + HEADER_SIZE + 3)
        opened.write(bytes([byte ^ 1]))
    with Reader(url, topics=["late"], start=0) as late:  # is sent on to another gateway
        assert sum(batch.num_rows for batch in late) == 3
    wait_until(lambda: tutti("status", "--json", url=url).json["disk"]["damage"]["mended_frames"] > mended)
    with Reader(url, topics=["late"], start=0) as late:
        assert sum(batch.num_rows for batch in late) == 3


def member(group: RunningGroup, name: str) -> dict[str, Any]:
    found = tutti("members", "--json", url=group.url).json
    return next(one for one in found if one["name"] == name)


@pytest.mark.parametrize("declared", [False, True], ids=["copied", "moved"])
def test_a_gateway_on_a_copy_of_its_directory_votes_when_it_was_moved_or_replaced(group: RunningGroup, declared: bool) -> None:
    url, directory = group["g2"].url, group["g2"].data
    wait_until(lambda: member(group, "g2")["voter"] and member(group, "g2")["state"] == "primary")
    group["g2"].kill()
    copy = directory.with_name("copy")
    shutil.copytree(directory, copy)
    shutil.rmtree(directory)
    copy.rename(directory)
    if declared:
        assert shell("log", "moved", str(directory)).code == 0
    group["g2"].start(wait=False)
    if not declared:
        wait_until(lambda: "tutti members replace g2" in tutti("status", "--json", url=url).out)
        wait_until(lambda: not member(group, "g2")["voter"])
        done = tutti("members", "replace", "g2", "--timeout", str(WAIT_S), url=group.url)
        assert done.code == 0, done.err
    wait_until(lambda: member(group, "g2")["voter"] and member(group, "g2")["state"] == "primary")
    assert tutti("produce", "--topic", "t", given=b"again\n", url=url).code == 0


def test_a_corrupt_end_is_reported_until_a_peer_has_repaired_it(group: RunningGroup) -> None:
    """An operator must see it on a gateway that runs alone, because the repair waits for the other gateways."""
    url, directory = group["g3"].url, group["g3"].data
    frontier = tutti("status", "--json", url=group.url).json["frontier"]
    wait_until(lambda: tutti("status", "--json", url=url).json["frontier"] == frontier)
    for name in ("g1", "g2", "g3"):
        group[name].kill()
    position = flip(directory, 0.3, header=True)
    group["g3"].start(wait=False)
    wait_until(lambda: bool(tutti("status", "--json", url=url).out))
    damage = tutti("status", "--json", url=url).json["disk"]["damage"]
    assert damage["lost"][0] == position
    assert damage["found"] == 1
    assert "the end of the log cannot be read" in group["g3"].log_tail(20_000)
    verified = shell("log", "verify", str(directory))
    assert verified.code == 4
    assert f"position {position}" in verified.out
    for name in ("g1", "g2"):
        group[name].start(wait=False)
    wait_until(lambda: tutti("status", "--json", url=url).json["frontier"] == frontier)
    wait_until(lambda: not tutti("status", "--json", url=url).json["disk"]["damage"]["lost"])
    assert shell("log", "verify", str(directory)).code == 0
