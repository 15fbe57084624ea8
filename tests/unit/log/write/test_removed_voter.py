"""Proves that the files of a removed voter are read like those of any voter: other voters may still need its answers."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.structs import replace

from tests.unit.log.history import GROUP, LOG, SMALL, History, write_log
from tutti.data import log_state
from tutti.data.frames.bodies import RosterBody, Voter, encode_body
from tutti.data.frames.frame import Frame, Kind
from tutti.data.hard_state import HardState
from tutti.data.log_state import LogState
from tutti_gateway.core.protocol.events import Recovered
from tutti_gateway.log.tools.verify import verify
from tutti_gateway.log.write.recovery import lost_promises

MINE, OTHER = b"mine".ljust(16, b"-"), b"other".ljust(16, b"-")


class Files:
    """A directory, as far as `forgot` asks it."""

    incarnation = MINE
    copied = False


def roster(*voters: Voter) -> Frame:
    return Frame(Kind.ROSTER, encode_body(RosterBody(GROUP, LOG, voters)))


def removed() -> LogState:
    """The state of a log whose voter number 2 was a member of view 1.1 and was removed."""
    history = History(begin=False)
    others = Voter(1, "g1", OTHER, "g1:7400")
    history._add(roster(others, Voter(2, "g2", MINE, "g2:7400")))
    history._add(roster(others))
    found = LogState()
    for frame in history.frames:
        found.apply(frame)
    found.view, found.members = history.view_id, (1, 2)
    return found


def test_a_removed_voter_whose_scalars_are_older_than_its_log_becomes_another_disk() -> None:
    found = removed()
    older = Recovered(LOG, HardState(), found, ())
    current = Recovered(LOG, HardState(found.view, found.view, 0), found, ())
    assert lost_promises(older, Files())  # type: ignore[arg-type] # nothing else is asked of a directory
    assert not lost_promises(current, Files())  # type: ignore[arg-type] # nothing else is asked


def test_a_copy_of_a_removed_voter_is_another_disk_though_one_voter_is_left() -> None:
    found = removed()
    files = Files()
    files.copied = True
    assert lost_promises(Recovered(LOG, HardState(found.view, found.view, 0), found, ()), files)  # type: ignore[arg-type] # nothing else is asked


@pytest.mark.parametrize("later", [False, True])
def test_a_snapshot_verifies_that_lacks_a_voter_whom_an_older_release_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, later: bool
) -> None:
    """The older release notes no removed voter. With `later` the next release removes another voter, and notes only that one."""
    history = History(voters=3)
    history.roster(voters=2)
    if later:
        history.roster(voters=1)
    for number in range(60):
        history.batch("p", "t", [b"%d" % number * 3000])
    apply = log_state._APPLY[Kind.ROSTER]

    def older(into: LogState, frame: Frame) -> None:
        apply(into, frame)
        into.removed.pop("g3", None)

    with monkeypatch.context() as release:
        release.setitem(log_state._APPLY, Kind.ROSTER, older)
        write_log(tmp_path, history, SMALL)
    assert len(list(tmp_path.glob("**/*.snap"))) > 1
    assert verify(str(tmp_path)).damage == []


def test_a_snapshot_that_names_another_removed_voter_than_the_log_is_damage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    history = History(voters=3)
    history.roster(voters=2)
    for number in range(60):
        history.batch("p", "t", [b"%d" % number * 3000])
    apply = log_state._APPLY[Kind.ROSTER]

    def wrong(into: LogState, frame: Frame) -> None:
        apply(into, frame)
        into.removed = {name: replace(voter, number=9) for name, voter in into.removed.items()}

    with monkeypatch.context() as release:
        release.setitem(log_state._APPLY, Kind.ROSTER, wrong)
        write_log(tmp_path, history, SMALL)
    assert any("snapshot" in finding.what for finding in verify(str(tmp_path)).damage)
