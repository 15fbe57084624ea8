"""Tests of the disposal of committed files: no unread file is deleted, no file is overwritten, and no name is free too early."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import orjson
import pytest

from tests.unit.connectors.files.fake_log import Rig
from tutti.runtime.durable_files import sync_directory
from tutti_connect.files import disposal as after_module


def rig_of(root: Path, what: str, more: str = "", form: str = "lines") -> Rig:
    done = f'\ndone = "{root}/done"' if what == "move" else ""
    return Rig(root, files=f'format = "{form}"\nafter = "{what}"{done}\n{more}')


def contents(directory: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in directory.iterdir()}


def change(rig: Rig, how: str, content: bytes) -> None:
    """In place, or by another file that is renamed over it."""
    if how == "replaced":
        rig.write("new", content)
        (rig.incoming / "new").rename(rig.incoming / "a")
    else:
        rig.write("a", content)


@pytest.mark.parametrize("what", ["move", "delete"])
def test_a_name_is_free_when_its_file_was_put_away(tmp_path: Path, what: str) -> None:
    """Proves that a file of the same name is a new one then, and that no moved file is overwritten."""
    rig = rig_of(tmp_path, what)
    for content in (b"1\n", b"1\n", b"2\n"):
        rig.write("a", content)
        rig.turns()
        assert list(rig.incoming.iterdir()) == []
    assert rig.log.values() == [b"1", b"1", b"2"]
    if what == "move":
        assert sorted(path.read_bytes() for path in (tmp_path / "done").iterdir()) == [b"1\n", b"1\n", b"2\n"]


@pytest.mark.parametrize("what", ["move", "delete"])
def test_a_name_is_free_wherever_the_process_ended(tmp_path: Path, what: str) -> None:
    """Proves for each step that a file under the name of a disposed one is read, and a file not yet disposed is not read twice."""
    steps, free = 0, set()
    while True:
        root = tmp_path / str(steps)
        root.mkdir()
        rig = rig_of(root, what)
        rig.write("a", b"1\n")
        crashed = rig.crash(steps)
        free.add(not (rig.incoming / "a").exists())
        if not (rig.incoming / "a").exists():
            rig.write("a", b"2\n")
        elif rig.log.rows:
            os.utime(rig.incoming / "a", (steps, steps))
        rig.turns(3)
        assert rig.log.values() in ([b"1"], [b"1", b"2"]), f"step {steps}"
        assert (b"2" in rig.log.values()) or contents(rig.incoming) in ({}, {"a": b"1\n"})
        if not crashed:
            break
        steps += 1
    assert (steps > 8, free) == (True, {True, False})


@pytest.mark.parametrize("how", ["rewritten", "appended", "replaced", "cut"])
@pytest.mark.parametrize("changed", ["tell", "take"])
def test_a_kept_file_that_is_repaired_is_not_duplicated_silently(
    tmp_path: Path, how: str, changed: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Proves it for one with a row in quarantine, which is not deleted: it is told, and left alone or taken as a whole."""
    rig = rig_of(tmp_path, "delete", f'changed = "{changed}"', "csv")
    rig.write("a", b"a,b\n1,2\n3\n4,5\n")
    rig.turns()
    content = {"appended": b"a,b\n1,2\n3\n4,5\n6,7\n", "cut": b"a,b\n1,2\n"}.get(how, b"a,b\n1,2\n3,3\n4,5\n")
    change(rig, how, content)
    caplog.clear()
    connector = rig.turns(3)
    again = {"appended": "146", "cut": "1"}.get(how, "134") if changed == "take" else ""
    assert [orjson.loads(value or b"")["a"] for value in rig.log.values()] == ["1", "4", *again]
    assert connector.changed == sum("differs from the content" in text for text in caplog.messages) == 1
    assert contents(rig.incoming) == ({"a": content} if changed == "tell" or how == "appended" else {})
    assert rig.turns().changed == 0


@pytest.mark.parametrize("what", ["move", "delete"])
@pytest.mark.parametrize("changed", ["tell", "take"])
@pytest.mark.parametrize("how", ["rewritten", "appended", "replaced", "again", "touched", "renamed", "gone"])
def test_a_file_that_others_change_before_it_is_put_away(tmp_path: Path, what: str, changed: str, how: str) -> None:
    """Proves that it is reported and not duplicated, and that nothing unread is disposed of, also if it is rewritten."""
    content = {"rewritten": b"3\n4\n", "appended": b"1\n2\n3\n", "replaced": b"5\n6\n"}.get(how, b"1\n2\n")
    rig = rig_of(tmp_path, what, f'changed = "{changed}"')
    rig.write("a", b"1\n2\n")
    with rig.session() as (_, session):
        session._scan()
        rig.log.decide(len(rig.log.undecided))
        session._process_outcomes()
        if how == "touched":
            os.utime(rig.incoming / "a", (1, 1))
        elif how == "renamed":
            (rig.incoming / "a").rename(rig.incoming / "b")
        elif how == "gone":
            (rig.incoming / "a").unlink()
        else:
            change(rig, "replaced" if how == "again" else how, content)
        session._write_ledger()
    count = sum(rig.turns(3).changed for _ in range(2))
    other = how not in ("again", "touched", "renamed", "gone")
    assert rig.log.values() == [b"1", b"2", *(content.split() if other and changed == "take" else [])]
    assert count == other
    stays = (other and changed == "tell") or (how in ("again", "touched") and what == "delete")
    assert contents(rig.incoming) == ({"a": content} if stays else {})
    if what == "move" and how != "gone":
        assert contents(tmp_path / "done") == ({} if stays else {"b" if how == "renamed" else "a": content})


@pytest.mark.parametrize("changed", ["tell", "take"])
def test_a_file_that_is_replaced_while_it_is_put_away_is_not_deleted_unread(
    tmp_path: Path, changed: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Proves it for a file that gets the name at the last moment."""
    rig = rig_of(tmp_path, "delete", f'changed = "{changed}"')
    rig.write("a", b"1\n")
    real, looks = after_module._is_unchanged, []

    def late(file: Any, path: Path) -> bool:
        looks.append(path.name)
        same = real(file, path)
        if path.name == "a" and looks.count("a") == 1:
            change(rig, "replaced", b"2\n")
        return same

    monkeypatch.setattr(after_module, "_is_unchanged", late)
    assert rig.turns(3).changed == 1
    assert rig.log.values() == [b"1", *([b"2"] if changed == "take" else [])]
    assert contents(rig.incoming) == ({} if changed == "take" else {"a": b"2\n"})


def test_a_file_written_after_its_rename_is_not_deleted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Proves that later writes to the open file are kept, and the message says where."""
    rig = rig_of(tmp_path, "delete")
    rig.write("a", b"1\n")
    real = sync_directory
    with (rig.incoming / "a").open("ab", buffering=0) as writer, monkeypatch.context() as patch:

        def late(folder: Path) -> None:
            real(folder)
            writer.write(b"2\n")

        patch.setattr("tutti_connect.files.disposal.sync_directory", late)
        rig.turns()
    ((aside, content),) = contents(rig.incoming).items()
    assert (content, aside in caplog.text) == (b"1\n2\n", True)
    rig.write("a", b"3\n")
    rig.turns()
    assert (rig.log.values(), contents(rig.incoming)) == ([b"1", b"3"], {aside: content})


def test_nothing_in_done_is_written_over(tmp_path: Path) -> None:
    """Proves it for every name that one is given, and for numbers that begin again with another ledger."""
    rig = rig_of(tmp_path, "move")
    files = [("a", b"0\n"), ("a.3", b"1\n"), ("a", b"2\n"), ("a", b"3\n")]
    for name, content in files:
        rig.write(name, content)
        rig.turns()
    (tmp_path / "done" / "a.5").symlink_to("nowhere")
    rig.log.progress = b""
    (tmp_path / "state" / "f.ledger").unlink()
    for number in range(4, 9):
        rig.write("a", b"%d\n" % number)
        rig.turns()
    (tmp_path / "done" / "a.5").unlink()
    assert sorted(contents(tmp_path / "done").values()) == [b"%d\n" % number for number in range(9)]
    assert list(rig.incoming.iterdir()) == []


def test_renamed_files_of_another_ledger_are_not_overwritten(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Proves that a file which could not be moved on is still there when the ledger was removed, or another connector moves one."""
    rig = rig_of(tmp_path, "move")
    rig.write("a", b"1\n")

    def refused(*_: object) -> None:
        raise PermissionError(13, "Permission denied")

    with monkeypatch.context() as patch:
        patch.setattr(after_module, "_moved", refused)
        rig.turns()
    ((aside, _),) = contents(rig.incoming).items()
    rig.log.progress = b""
    (tmp_path / "state" / "f.ledger").unlink()
    rig.write("a", b"2\n")
    rig.turns()
    assert contents(rig.incoming) == {aside: b"1\n"}
    assert contents(tmp_path / "done") == {"a": b"2\n"}


def test_two_that_share_a_directory_put_away_their_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Proves that files of two connectors with the same numbers stand aside side by side."""
    first = rig_of(tmp_path, "move", 'pattern = "*.csv"')
    first.write("a.csv", b"1\n")

    def refused(*_: object) -> None:
        raise PermissionError(13, "Permission denied")

    with monkeypatch.context() as patch:
        patch.setattr(after_module, "_moved", refused)
        first.turns()
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "in").symlink_to(first.incoming)
    second = Rig(tmp_path / "other", files=f'format = "lines"\nafter = "move"\ndone = "{tmp_path}/done"\npattern = "*.json"')
    second.write("a.json", b"2\n")
    second.turns()
    first.turns()
    assert contents(tmp_path / "done") == {"a.csv": b"1\n", "a.json": b"2\n"}


def test_a_renamed_file_that_disappears_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    rig = rig_of(tmp_path, "move")
    rig.write("a", b"1\n")

    def lost(aside: Path, *_: object) -> None:
        aside.unlink()
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(after_module, "_moved", lost)
    rig.turns()
    assert "another process removed it" in caplog.text
    assert "permission denied" in caplog.text


def test_a_file_that_cannot_be_moved_is_tried_again(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Proves that it keeps its name while the target is unavailable, is not read again, and is moved later."""
    rig = Rig(tmp_path, top="# no topic", files=f'format = "lines"\nafter = "move"\ndone = "{tmp_path}/done"')
    rig.write("x/a", b"1\n")
    (tmp_path / "done").mkdir()
    (tmp_path / "done" / "x").write_bytes(b"")
    rig.turns(3)
    assert "x/a cannot be moved: file exists" in caplog.text
    assert contents(rig.incoming / "x") == {"a": b"1\n"}
    (tmp_path / "done" / "x").unlink()
    rig.turns()
    assert (contents(rig.incoming / "x"), contents(tmp_path / "done" / "x")) == ({}, {"a": b"1\n"})
    assert rig.log.values("x") == [b"1"]


@pytest.mark.parametrize("what", ["keep", "delete"])
def test_a_repaired_file_without_any_read_row_is_new(tmp_path: Path, what: str) -> None:
    rig = rig_of(tmp_path, what, form="csv")
    rig.write("a", b"a,a\n1,2\n")
    rig.turns()
    rig.write("a", b"a,b\n1,2\n")
    rig.turns()
    assert rig.log.values() == [b'{"a":"1","b":"2"}']


def test_a_file_with_rows_in_quarantine_is_not_deleted(tmp_path: Path) -> None:
    rig = rig_of(tmp_path, "delete", form="jsonl")
    rig.write("a", b"1\nno\n2\n")
    for _ in range(2):
        rig.turns()
    assert rig.log.values() == [b"1", b"2"]
    assert (rig.incoming / "a").exists()
    (told,) = (orjson.loads(path.read_bytes()) for path in (tmp_path / "q").iterdir())
    assert (told["file"], told["row"], told["at"], told["row_base64"]) == ("a", 2, 2, "bm8=")
