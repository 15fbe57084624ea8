"""Proves that transcripts of whole groups can fail: what is not so, and what may never happen, shows in them."""

from pathlib import Path

import pytest

from tests.transcripts.disks import Disk
from tests.transcripts.whole import Pace
from tests.transcripts.whole_script import WholeScript

FILES = sorted(Path(__file__).parent.glob("group_*.txt"))
PACES = [
    Pace(start_ms=37),
    Pace(start_ms=90),
    Pace(start_ms=150),
    Pace(entropy="other"),
    Pace(message_ms=4, disk_ms=2),
    Pace(message_ms=0.3, disk_ms=9, start_ms=110),
    Pace(message_ms=12, disk_ms=0.5, start_ms=70, entropy="others"),
]
BEGIN = "quiet\ngateways g1 g2 g3\nuntil primary g1 g2 g3\nclient g1 s1 ewr\n"


def played(commands: str) -> tuple[WholeScript, list[str]]:
    """A script that has run, and what came out behind the beginning."""
    script = WholeScript()
    script.run(f"{BEGIN}----\n")
    return script, script.run(f"{commands}\n----\n").split("----\n")[1].splitlines()


class Forgetful(Disk):
    """A disk that reports what it did not keep."""

    def done(self) -> int:
        action = self.wishes.popleft().persist
        self.scalars = action.scalars or self.scalars
        return action.token


def test_a_failed_check_is_reported() -> None:
    assert played("check committed p1/1 1+1 g1")[1] == ["WRONG: committed p1/1 1+1 g1"]
    assert played("check not primary g1 g2 g3")[1] == ["WRONG: not primary g1 g2 g3"]


def test_a_condition_that_is_never_met_is_reported() -> None:
    assert played("until committed p1/1 1+1 g1")[1] == ["WRONG: 400 heartbeats passed until committed p1/1 1+1 g1"]


def test_a_vote_above_the_durable_end_is_reported() -> None:
    script, _ = played("check primary")
    disk = script.world.members["g2"].disk
    disk.__class__ = Forgetful
    lines = script.run("submit g1 s1 p1/1 1+10\nsettle\n----\n").splitlines()
    assert "PROBLEM g2 votes up to 5, and 4 is durable" in lines
    assert any("g1 decides" in line and "g2 does not have it durable" in line for line in lines)


def test_a_run_that_does_not_replay_is_reported() -> None:
    script, _ = played("submit g1 s1 p1/1 1+10\nsettle")
    assert script.finish() == []
    history = script.world.members["g3"].history
    del history[len(history) // 2]
    assert any("g3 is answered differently" in problem for problem in script.finish())


def test_a_diverging_log_is_reported() -> None:
    script, _ = played("kill g3")
    world = script.world
    world.watch.log[-1] = world.watch.log[-1]._replace(offset=7)
    world.members["g3"].disk.watermark -= 1
    lines = script.run("start g3\nuntil primary g1 g2 g3\n----\n").splitlines()
    assert any(line.startswith("PROBLEM g3 delivers") for line in lines)


@pytest.mark.slow
@pytest.mark.parametrize("path", FILES, ids=[path.stem for path in FILES])
def test_its_facts_hold_at_any_latency_of_network_and_disk(path: Path) -> None:
    for pace in PACES:
        script = WholeScript(pace)
        lines = script.run(path.read_text("utf-8")).splitlines()
        wrong = [line for line in lines if line.startswith(("WRONG", "PROBLEM"))] + script.finish()
        assert not wrong, f"{pace}: {wrong}"
