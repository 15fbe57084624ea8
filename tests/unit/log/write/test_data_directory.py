"""A data directory belongs to one gateway of one group, and one process at a time writes it; every refusal says why."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.unit.log.history import GATEWAY, GROUP, LOG, SMALL, VIEW, History, decide, opened, sample, write_log
from tutti.data.frames.bodies import RosterBody, Voter, encode_body
from tutti.data.frames.frame import Frame, Kind
from tutti.data.hard_state import HardState
from tutti.errors import Damaged, DirectoryRefused, WrongDirectory
from tutti.log.files.data_directory import declare_moved, lock_directory, open_directory, read_identity
from tutti.log.format.hard_state import encode_slot, read_hard_state
from tutti.log.read.reader import LogReader
from tutti_gateway.log.writer import LogWriter


def test_a_new_directory_becomes_the_gateways_own_and_stays_it(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "data"
    with_identity = open_directory(str(path), gateway=GATEWAY, group=GROUP)
    incarnation = with_identity.incarnation
    with_identity.close()
    again = open_directory(str(path), gateway=GATEWAY, group=GROUP)
    assert (again.incarnation, len(incarnation), again.log) == (incarnation, 16, b"")
    again.close()


def test_a_locked_directory_names_the_process_that_holds_it(tmp_path: Path) -> None:
    code = (
        "import sys; from tutti.log.files.data_directory import open_directory\n"
        f"held = open_directory({str(tmp_path)!r}, gateway={GATEWAY!r}, group={GROUP!r})\n"
        "print('held', flush=True); sys.stdin.read()"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        with pytest.raises(DirectoryRefused, match=f"in use by process {holder.pid}: .* this one a directory of its own") as caught:
            open_directory(str(tmp_path), gateway=GATEWAY, group=GROUP)
        assert caught.value.exit_code == 1  # another start may find it free
        with pytest.raises(DirectoryRefused, match=f"{holder.pid}: stop it first; .* tutti log verify {tmp_path}$"):
            lock_directory(tmp_path)  # a repair is of this directory and of no other
        holder.kill()
        holder.wait()
    open_directory(str(tmp_path), gateway=GATEWAY, group=GROUP).close()  # the lock went with the process


@pytest.mark.parametrize(
    ("gateway", "group", "message"),
    [("other", GROUP, "belongs to gateway 'g1', not to 'other'"), (GATEWAY, "other", "belongs to group 'test', not to 'other'")],
)
def test_the_directory_of_another_gateway_or_group_is_refused(tmp_path: Path, gateway: str, group: str, message: str) -> None:
    open_directory(str(tmp_path), gateway=GATEWAY, group=GROUP).close()
    (tmp_path / "LOCK").unlink()  # as an archive restores it
    with pytest.raises(WrongDirectory, match=message) as caught:
        open_directory(str(tmp_path), gateway=gateway, group=group)
    assert caught.value.exit_code == 2  # it would be the same at another start
    assert not (tmp_path / "LOCK").exists()


def test_an_identity_of_a_newer_format_is_refused(tmp_path: Path) -> None:
    (tmp_path / "identity.json").write_bytes(b'{"format": 2, "gateway": 7}')
    with pytest.raises(WrongDirectory, match="has format 2, but this release supports format 1"):
        open_directory(str(tmp_path), gateway=GATEWAY, group=GROUP)
    with pytest.raises(WrongDirectory, match="has format 2, but this release supports format 1"):
        LogReader(tmp_path)


WHOLE = b'{"format": 1, "gateway": "g1", "group": "test", "incarnation": "%s", "log": "%s"}' % (b"0a" * 16, b"0b" * 16)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"not json",
        b'{"format": 1}',
        b"[" * 100_000,
        WHOLE.replace(b'"g1"', b'"g\xf1"'),  # no UTF-8
        WHOLE.replace(b'"gateway"', b'"g\xe1teway"'),
        WHOLE.replace(b"0a0a", b"0a0q", 1),
        WHOLE.replace(b"0b0b", b"0b", 1),
    ],
)
def test_an_identity_that_is_none_is_damage(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "identity.json").write_bytes(content)
    for opens in (lambda: open_directory(str(tmp_path), gateway=GATEWAY, group=GROUP), lambda: LogReader(tmp_path)):
        with pytest.raises(Damaged, match=r"identity\.json is not an identity of a gateway") as caught:
            opens()
        assert caught.value.exit_code == 4  # which tells who starts gateways that another start does not help


@pytest.mark.parametrize("bit", range(8))
def test_a_flipped_bit_in_the_identity_never_passes_for_a_defect(tmp_path: Path, bit: int) -> None:
    open_directory(str(tmp_path), gateway=GATEWAY, group=GROUP).close()
    whole = (tmp_path / "identity.json").read_bytes()
    refused = 0
    for at in range(len(whole)):
        (tmp_path / "identity.json").write_bytes(whole[:at] + bytes([whole[at] ^ 1 << bit]) + whole[at + 1 :])
        try:
            opened_again = open_directory(str(tmp_path), gateway=GATEWAY, group=GROUP)
        except (Damaged, DirectoryRefused):
            refused += 1
        else:
            assert (len(opened_again.incarnation), opened_again.log) == (16, b"")
            opened_again.close()
    assert refused > len(whole) // 3


def test_a_directory_that_holds_something_else_is_refused_and_left_alone(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("years of work")
    with pytest.raises(WrongDirectory, match=r"it holds 'thesis\.tex' and has no identity\.json"):
        open_directory(str(tmp_path), gateway=GATEWAY, group=GROUP)
    with pytest.raises(WrongDirectory, match=r"has no identity\.json"):
        LogReader(tmp_path)
    assert os.listdir(tmp_path) == ["thesis.tex"]  # no lock of ours either


def test_a_first_start_that_was_cut_off_before_the_identity_is_begun_again(tmp_path: Path) -> None:
    (tmp_path / "log").mkdir()
    open_directory(str(tmp_path), gateway=GATEWAY, group=GROUP).close()
    (tmp_path / "identity.json").unlink()
    (tmp_path / "log" / "00000000000000000001.seg").write_bytes(b"frames")
    with pytest.raises(WrongDirectory, match=r"it holds 'log' and has no identity\.json"):  # an identity that was lost
        open_directory(str(tmp_path), gateway=GATEWAY, group=GROUP)


def test_a_directory_above_those_of_gateways_is_refused_with_a_hint(tmp_path: Path) -> None:
    """`tutti dev --data DIR` keeps gateway g1 in DIR/g1."""
    open_directory(str(tmp_path / "g1"), gateway=GATEWAY, group=GROUP).close()
    (tmp_path / "other").mkdir()
    for opener in (LogReader, lock_directory):
        with pytest.raises(WrongDirectory, match=rf"has no identity\.json; did you mean {tmp_path / 'g1'}\?$"):
            opener(tmp_path)
    open_directory(str(tmp_path / "g2"), gateway=GATEWAY, group=GROUP).close()
    for path, said in (
        (tmp_path, rf"has no identity\.json; did you mean {tmp_path / 'g1'} or {tmp_path / 'g2'}\?$"),
        (tmp_path / "other", r"has no identity\.json$"),
        (tmp_path / "missing", "missing is not the data directory of a gateway: it does not exist$"),
    ):
        with pytest.raises(WrongDirectory, match=said):
            LogReader(path)


def test_a_path_that_is_no_directory_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(DirectoryRefused, match="is not usable: Not a directory"):
        open_directory(str(tmp_path / "file" / "data"), gateway=GATEWAY, group=GROUP)
    with pytest.raises(DirectoryRefused, match="is not usable"):
        open_directory(str(tmp_path / "missing"), gateway=GATEWAY, group=GROUP, create=False)


def test_segments_of_another_log_are_refused(tmp_path: Path) -> None:
    write_log(tmp_path, History())
    identity = json.loads((tmp_path / "identity.json").read_text())
    identity["log"] = "ab" * 16
    (tmp_path / "identity.json").write_text(json.dumps(identity))
    with pytest.raises(WrongDirectory, match=r"belongs to log abab.*, but its segments belong to log 00010203"):
        opened(tmp_path)


def test_a_lost_log_folder_or_scalars_is_not_taken_for_a_new_gateway(tmp_path: Path) -> None:
    write_log(tmp_path, History())
    os.rename(tmp_path / "scalars", tmp_path / "away")
    with pytest.raises(Damaged, match="scalars is missing, but the log exists"):
        opened(tmp_path)
    os.rename(tmp_path / "away", tmp_path / "scalars")
    for file in (tmp_path / "log").iterdir():
        file.unlink()
    with pytest.raises(Damaged, match=r"held log 00010203.*log has no segment of it"):
        opened(tmp_path)
    (tmp_path / "log").rmdir()
    with pytest.raises(Damaged, match=r"the log folder of data directory .* is missing"):
        opened(tmp_path)


def test_scalars_survive_a_torn_slot_and_are_refused_when_both_are_bad(tmp_path: Path) -> None:
    write_log(tmp_path, History())
    found = read_hard_state(str(tmp_path))
    assert found is not None
    data = bytearray((tmp_path / "scalars").read_bytes())
    newest = 0 if data.startswith(encode_slot(found)) else 4096
    data[newest + 9] ^= 1
    (tmp_path / "scalars").write_bytes(data)
    older = read_hard_state(str(tmp_path))
    assert older is not None
    assert older.sequence == found.sequence - 1
    data[4096 - newest + 9] ^= 1
    (tmp_path / "scalars").write_bytes(data)
    with pytest.raises(Damaged, match=r"both slots are corrupt.* never restore this file alone from a backup"):
        opened(tmp_path)


def test_scalars_of_a_newer_release_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_log(tmp_path, History())
    found = read_hard_state(str(tmp_path))
    assert found is not None
    monkeypatch.setattr("tutti.log.format.hard_state.FORMAT_VERSION", 9)
    newer = encode_slot(found._replace(sequence=found.sequence + 1))
    monkeypatch.undo()
    (tmp_path / "scalars").write_bytes(newer.ljust(8192, b"\0"))
    with pytest.raises(WrongDirectory, match="has format 9, but this release supports format 1"):
        opened(tmp_path)


def test_a_directory_that_its_group_went_on_without_is_refused_and_can_still_be_read_and_repaired(tmp_path: Path) -> None:
    write_log(tmp_path, History())
    directory = open_directory(str(tmp_path), gateway=GATEWAY, group=GROUP)
    directory.mark_left("the group went on without gateway 'jfk'")
    directory.close()
    with pytest.raises(DirectoryRefused, match=r"no gateway can start on data directory .* again: the group went on without"):
        open_directory(str(tmp_path), gateway=GATEWAY, group=GROUP)
    lock_directory(tmp_path).close()
    assert LogReader(tmp_path).frontier().position


def incarnation_of(path: Path) -> str:
    identity = read_identity(str(path))
    assert identity is not None
    return identity.incarnation


def start(path: Path) -> str:
    """Start and stop a gateway on it; what it says about a copy."""
    directory = open_directory(str(path), gateway=GATEWAY, group=GROUP)
    writer, recovered = LogWriter.open(directory, SMALL)
    assert list(recovered.tail) == []
    assert recovered.state.position == len(VOTED.frames)
    writer.close()
    directory.close()
    return directory.renewed


VOTED = sample(10, voters=3)


def test_a_copy_of_a_members_directory_becomes_another_disk_with_its_log_once(tmp_path: Path) -> None:
    write_log(tmp_path / "one", VOTED)
    before = incarnation_of(tmp_path / "one")
    assert start(tmp_path / "one") == ""
    shutil.copytree(tmp_path / "one", tmp_path / "two")
    assert "is a copy" in start(tmp_path / "two")
    renewed = incarnation_of(tmp_path / "two")
    assert renewed != before
    assert start(tmp_path / "two") == ""
    assert start(tmp_path / "one") == ""
    assert (incarnation_of(tmp_path / "one"), incarnation_of(tmp_path / "two")) == (before, renewed)


def test_a_directory_that_was_renamed_or_declared_as_moved_stays_what_it_was(tmp_path: Path) -> None:
    write_log(tmp_path / "one", VOTED)
    before = incarnation_of(tmp_path / "one")
    (tmp_path / "one").rename(tmp_path / "two")
    assert start(tmp_path / "two") == ""
    shutil.copytree(tmp_path / "two", tmp_path / "three")
    assert declare_moved(tmp_path / "three")
    assert not declare_moved(tmp_path / "three")
    assert start(tmp_path / "three") == ""
    assert incarnation_of(tmp_path / "three") == before


def test_a_copy_of_a_gateway_alone_goes_on_as_it_was(tmp_path: Path) -> None:
    """Nobody else knows more than it does; with another disk it would be nobody's voter."""
    history = sample(10)
    write_log(tmp_path / "one", history)
    shutil.copytree(tmp_path / "one", tmp_path / "two")
    write_log(tmp_path / "two", history)
    assert incarnation_of(tmp_path / "two") == incarnation_of(tmp_path / "one")


def test_a_copy_of_a_directory_without_a_log_is_another_disk(tmp_path: Path) -> None:
    """The group may have named the original already."""
    _, _, close = opened(tmp_path / "one")
    close()
    shutil.copytree(tmp_path / "one", tmp_path / "two")
    _, _, close = opened(tmp_path / "two")
    close()
    assert incarnation_of(tmp_path / "two") != incarnation_of(tmp_path / "one")


def test_a_directory_of_a_release_that_noted_no_place_is_no_copy(tmp_path: Path) -> None:
    write_log(tmp_path, VOTED)
    file = tmp_path / "identity.json"
    told = json.loads(file.read_text())
    assert told.pop("place")
    file.write_text(json.dumps(told))
    assert start(tmp_path) == ""
    assert incarnation_of(tmp_path) == told["incarnation"]
    assert json.loads(file.read_text())["place"]


@pytest.mark.parametrize(("accepted", "renewed"), [(VIEW, False), (VIEW - 1, True)])
def test_scalars_that_are_older_than_the_log_make_it_another_disk(tmp_path: Path, accepted: int, renewed: bool) -> None:
    """The log holds the VIEW frame of a view that this disk accepted before it was ordered."""
    _, _, close = opened(tmp_path)
    close()
    mine = bytes.fromhex(incarnation_of(tmp_path))
    voters = tuple(Voter(number, f"g{number}", mine if number == 1 else b"-" * 16, "") for number in (1, 2, 3))
    roster = Frame(Kind.ROSTER, encode_body(RosterBody(GROUP, LOG, voters)))
    roster.stamp(VIEW, 1, 0)
    history = History(begin=False)
    history.frames.append(roster)
    history.view()
    writer, _, close = opened(tmp_path)
    writer.write_hard_state(HardState(accepted, accepted, 0))
    writer.append(history.frames)
    writer.sync()
    decide(writer, history, 1, len(history.frames))
    while writer.idle():
        continue
    close()
    _, _, close = opened(tmp_path)
    close()
    assert (incarnation_of(tmp_path) != mine.hex()) == renewed
