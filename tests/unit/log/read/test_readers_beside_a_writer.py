"""Readers in other processes and threads, while a gateway writes, after it was killed, and under another boot."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from tests.unit.log.history import History, decide, opened, other_boot, sample, write_log
from tutti.errors import DirectoryRefused
from tutti.log.files import live_page
from tutti.log.read.reader import LogReader
from tutti.log.read.scan import scan
from tutti.sources.files import FileSource

FOLLOW = """
import sys, json
from tutti.data.scan_request import ScanRequest
from tutti.sources.files import FileSource as Files
files = Files(sys.argv[1])
at, end = 0, int(sys.argv[2])
values = []
while at < end:
    frontier = files.frontier(at, 20)
    assert frontier.offset > at, "nothing came"
    for batch, _, _ in files.scan(ScanRequest(at, frontier.offset, columns=("offset", "value"))):
        assert batch.column(0)[0].as_py() == at
        at += batch.num_rows
        values += [len(value) for value in batch.column(1).to_pylist()]
print(json.dumps(values))
"""


def test_another_process_follows_a_log_that_is_being_written(tmp_path: Path) -> None:
    history = sample(150, size=1500)
    writer, _, close = opened(tmp_path)
    code = [sys.executable, "-c", FOLLOW, str(tmp_path), str(len(history.records))]
    with subprocess.Popen(code, stdout=subprocess.PIPE, text=True) as follower:
        for start in range(0, len(history.frames), 3):
            some = history.frames[start : start + 3]
            writer.append(some)
            writer.sync()
            decide(writer, history, start + 1, start + len(some))
        out, _ = follower.communicate(timeout=60)
    assert follower.returncode == 0
    values = [record.value for record in history.records]
    assert out.strip() == str([len(value) for value in values if value is not None])
    close()


WRITE_AND_DIE = """
import os, signal, sys
from tests.unit.log.history import *
history = sample(30)
writer, _, close = opened(sys.argv[1])
writer.append(history.frames)
writer.sync()
decide(writer, history, 1, len(history.frames))
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_after_a_kill_the_frontier_stays_where_it_was_shown(tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, "-c", WRITE_AND_DIE, str(tmp_path)], check=False, cwd=Path.cwd())
    assert done.returncode == -signal.SIGKILL
    history = sample(30)
    reader = LogReader(tmp_path)
    frontier = reader.frontier()
    assert (frontier.offset, frontier.live) == (len(history.records), False)
    writer, recovered, close = opened(tmp_path)
    assert recovered.state.position == len(history.frames)  # the page cache knows more than the watermark
    again = reader.frontier()
    assert (again.offset, again.live) == (len(history.records), True)
    history.view(2)
    writer.append(history.frames[-1:])
    writer.sync()
    decide(writer, history, len(history.frames), len(history.frames))
    assert reader.frontier().position == len(history.frames)
    close()


def test_the_live_page_of_another_boot_or_of_a_copy_is_not_believed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    history = sample(30)
    decided = 20
    writer, _, close = opened(tmp_path / "one")
    writer.append(history.frames)
    writer.sync()
    decide(writer, history, 1, decided)
    while writer.idle():
        continue
    writer.frontier(len(history.frames), len(history.records))
    reader = LogReader(tmp_path / "one")
    assert reader.frontier().offset == len(history.records)
    subprocess.run(["cp", "-r", str(tmp_path / "one"), str(tmp_path / "two")], check=True)
    assert LogReader(tmp_path / "two").frontier().offset == history.offset_after(decided)
    monkeypatch.setattr(live_page, "boot_id", lambda: bytes(16))
    assert LogReader(tmp_path / "one").frontier().offset == history.offset_after(decided)
    assert reader.frontier().offset == len(history.records)  # but one reader's frontier never moves back
    close()


def test_many_threads_read_while_one_writes(tmp_path: Path) -> None:
    history = sample(150, size=1500)
    writer, _, close = opened(tmp_path)
    reader, files = LogReader(tmp_path), FileSource(tmp_path)
    wrong: list[object] = []
    values = [record.value for record in history.records]

    def follow() -> None:
        at = 0
        while at < len(values):
            frontier = files.frontier(at, 20)
            for batch in scan(reader, at, frontier.offset, columns=["value"]):
                if batch.column(0).to_pylist() != values[at : at + batch.num_rows]:
                    wrong.append(at)
                at += batch.num_rows
            if frontier.offset <= at < len(values) and frontier.offset < at:
                wrong.append(("short", at))
            reader.state()

    threads = [threading.Thread(target=follow) for _ in range(4)]
    for thread in threads:
        thread.start()
    for start in range(0, len(history.frames), 5):
        some = history.frames[start : start + 5]
        writer.append(some)
        writer.sync()
        decide(writer, history, start + 1, start + len(some))
    for thread in threads:
        thread.join(60)
    assert not any(thread.is_alive() for thread in threads)
    assert wrong == []
    close()


def _replace(path: Path, batches: int) -> None:
    """Another log in the place of the one that is there, as after a wipe and a new start of the gateway."""
    shutil.rmtree(path)
    write_log(path, sample(batches))


@pytest.mark.parametrize("was_live", [True, False])
@pytest.mark.parametrize("batches", [5, 60])
def test_a_follower_is_told_that_its_directory_was_replaced(tmp_path: Path, was_live: bool, batches: int) -> None:
    path = tmp_path / "data"
    history = sample(30)
    write_log(path, history)
    if not was_live:
        other_boot(path)
    reader, files = LogReader(path), FileSource(path)
    end = len(history.records)
    assert (reader.frontier().offset, files.frontier().offset) == (end, end)
    _replace(path, batches)
    with pytest.raises(DirectoryRefused, match="another data directory has replaced"):
        files.frontier(end, 20)
    with pytest.raises(DirectoryRefused, match=r"another data directory has replaced .*: it holds log 0001.* open a new reader"):
        reader.frontier()
    reader.close()
    files.close()
    anew = LogReader(path)
    assert anew.frontier().offset == len(sample(batches).records)
    anew.close()


def test_a_follower_is_told_that_its_directory_is_gone(tmp_path: Path) -> None:
    path = tmp_path / "data"
    write_log(path, sample(5))
    files = FileSource(path)
    end = files.frontier().offset
    shutil.rmtree(path)
    with pytest.raises(DirectoryRefused, match=r"data directory .* was removed"):
        files.frontier(end, 20)
    files.close()


def test_a_follower_goes_on_where_the_same_directory_was_put_back(tmp_path: Path) -> None:
    path, aside = tmp_path / "data", tmp_path / "aside"
    history = History()
    history.batch("p", "t", [b"1"])
    write_log(path, history)
    files = FileSource(path)
    assert files.frontier().offset == 1
    shutil.copytree(path, aside)
    shutil.rmtree(path)
    os.rename(aside, path)
    history.batch("p", "t", [b"2"])
    write_log(path, history)  # the gateway started again on the copy, and wrote
    assert files.frontier(1, 20).offset == 2
    files.close()


@pytest.mark.parametrize("between", range(8))
def test_a_tick_is_never_shown_before_the_offset_that_it_lies_at(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, between: int
) -> None:
    history = History()
    history.batch("a", "t", [b"1", b"2"])
    before = len(history.frames)
    history.batch("a", "t", [b"3", b"4"])
    history.tick()
    writer, _, close = opened(tmp_path)
    writer.append(history.frames)
    writer.sync()
    decide(writer, history, 1, before)
    reader = LogReader(tmp_path)
    assert reader.frontier().offset == 2
    assert reader._live is not None
    words, read = reader._live.fields, 0

    class Words:
        """Another run is decided while a look goes from word to word."""

        def __getitem__(self, number: int) -> int:
            nonlocal read
            read += 1
            if read == between + 1:
                decide(writer, history, before + 1, len(history.frames))
            return words[number]

    monkeypatch.setattr(reader._live, "fields", Words())
    monkeypatch.setattr(live_page.LiveView, "valid", True)
    monkeypatch.setattr(live_page.LiveView, "alive", True)
    found = reader.frontier()
    assert found.tick == 0 or found.offset == 4
    reader.close()
    close()
