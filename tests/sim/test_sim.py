"""Proves that the stack keeps every promise through some fixed seeds, and that a seed is one run and no other."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from dataclasses import replace

import pytest

import tests.sim.__main__ as main
from tests.sim.connection import State
from tests.sim.disk import Disk
from tests.sim.mixes import MIXES, mix_of
from tests.sim.options import FAULTS, Options
from tests.sim.run import Result, Run, play
from tests.sim.schedule import SECOND
from tests.sim.shrink import shrink
from tests.sim.stage_clients import Stager
from tests.sim.swarm import ALONE, draw, drawn
from tests.sim.world import World
from tests.support.cases import first_fast
from tutti.data.names import NAMELESS
from tutti_gateway.core.flush.disk_repair import LogRepair
from tutti_gateway.core.protocol.events import StackConfig


def digest(result: Result) -> tuple[int, int, int, str]:
    last = result.world.log.places[-1].frame if result.frames else None
    return result.frames, result.world.steps, last.header_crc if last is not None else 0, result.violation


@pytest.mark.parametrize("seed", first_fast(range(1, 7), 2))
def test_a_group_of_one_keeps_every_promise(seed: int) -> None:
    options = replace(draw(seed, members=1), faults=ALONE, seconds=60)
    result = play(options)
    assert result.violation == "", options.command(draw(seed))
    assert result.frames > 20


@pytest.mark.parametrize("seed", first_fast(range(1, 13), 6))  # six sizes of a group
def test_a_group_keeps_every_promise(seed: int) -> None:
    options = replace(draw(seed, members=(2, 3, 3, 4, 5, 7)[seed % 6]), seconds=60)
    result = play(options)
    assert result.violation == "", options.command(draw(seed))
    assert result.frames > 5


def test_a_group_of_five_with_every_fault_at_once_keeps_every_promise() -> None:
    options = Options(1, members=5, seconds=120, faults=frozenset(FAULTS), pace=20.0, producers=4)
    result = play(options)
    assert result.violation == ""
    assert result.world.counts["views"] > 10
    assert result.world.counts["cuts"] + result.world.counts["damaged"] > 0


@pytest.mark.slow
def test_an_operator_learns_the_result_of_a_change_older_than_the_asked_process() -> None:
    assert play(draw(162_100_013)).violation == ""


@pytest.mark.slow
def test_a_leaving_member_has_sent_all_that_its_last_heartbeat_reports() -> None:
    assert play(replace(draw(5), pipeline=1, faults=frozenset({"leave"}))).violation == ""


def test_the_same_seed_is_the_same_run() -> None:
    options = replace(draw(5, members=3), seconds=30)
    assert digest(play(options)) == digest(play(options))


def test_a_run_does_not_depend_on_the_hashes_of_the_process() -> None:
    program = "from tests.sim.test_sim import digest, draw, play; print(digest(play(draw(%d, 3))))"
    told = {
        subprocess.run(
            [sys.executable, "-c", program % 3], env={"PYTHONHASHSEED": hashes, "PYTHONPATH": "."}, check=True, capture_output=True
        ).stdout
        for hashes in ("1", "2")
    }
    assert len(told) == 1
    assert b"0, 0, 0" not in told.pop()


@pytest.mark.slow
def test_a_start_that_does_not_sync_what_it_found_is_caught_and_shrunk(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Disk, "SYNC_AT_START", False)
    options = Options(1, members=3, faults=frozenset({"kill", "power"}), pace=2.0)
    failed = next(result for result in map(play, (replace(options, seed=seed) for seed in range(40))) if result.violation)
    small = shrink(failed, tries=20)
    assert small.violation
    assert small.options.seconds <= failed.options.seconds
    assert "durable" in small.violation


def test_the_swarm_draws_every_fault_size_and_latency() -> None:
    drawn = [draw(seed) for seed in range(300)]
    assert frozenset.union(*[options.faults for options in drawn]) == set(FAULTS)
    assert {options.members for options in drawn} == {1, 2, 3, 4, 5, 7}
    assert {options.latency for options in drawn} == {"lan", "wan", "edge"}
    assert any(not options.faults for options in drawn)


@pytest.mark.parametrize("name", first_fast(MIXES, 4))
def test_a_group_keeps_every_promise_under_a_named_mix(name: str) -> None:
    options = replace(drawn(3, mix=name), seconds=8)
    result = play(options)
    assert result.violation == "", options.command(drawn(3, mix=name))
    assert result.world.faults.keys() <= options.faults
    assert result.world.faults


def played(monkeypatch: pytest.MonkeyPatch, *words: str) -> list[Options]:
    """The runs that a command line asks for; none of them is played."""
    options: list[Options] = []
    nothing = Result(Options(1), World(Options(1)))

    def note(wanted: Options) -> Result:
        options.append(wanted)
        return nothing

    monkeypatch.setattr(main, "play", note)
    monkeypatch.setattr(sys, "argv", ["tests.sim", *words])
    main.main()
    return options


def test_a_campaign_draws_all_mixes_and_mostly_the_swarm(monkeypatch: pytest.MonkeyPatch) -> None:
    mixes = [mix_of(seed) for seed in range(1000)]
    assert set(mixes) == {"", *MIXES}
    assert 0.6 < mixes.count("") / len(mixes) < 0.8
    options = played(monkeypatch, "--seconds", "0.001", "--seed", "7")
    assert [one.mix for one in options] == [mix_of(one.seed) for one in options]
    aimed = next(seed for seed in range(1000) if mix_of(seed) == "clocks")
    assert played(monkeypatch, "--seconds", "0.001", "--seed", str(aimed))[0] == MIXES["clocks"].options(aimed)
    assert played(monkeypatch, "--seconds", "0.001", "--seed", str(aimed), "--mix", "swarm")[0] == draw(aimed)


def test_a_single_seed_uses_the_swarm_unless_a_mix_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    aimed = next(seed for seed in range(1000) if mix_of(seed) == "clocks")
    assert played(monkeypatch, "--seed", str(aimed)) == [draw(aimed)]
    assert played(monkeypatch, "--seed", str(aimed), "--mix", "epochs") == [MIXES["epochs"].options(aimed)]


def test_the_command_of_a_run_of_a_mix_repeats_it(monkeypatch: pytest.MonkeyPatch) -> None:
    of_clocks = drawn(7, mix="clocks")
    options = replace(of_clocks, members=4, seconds=6.0, faults=frozenset({"kill"}), producers=1)
    command = options.command(of_clocks)
    assert command.startswith("python -m tests.sim --seed 7 --mix clocks --members 4 ")
    assert played(monkeypatch, *command.split()[3:]) == [options]


def test_the_command_of_a_run_repeats_it() -> None:
    options = replace(draw(7), members=2, seconds=1.5, faults=frozenset({"kill"}))
    assert options.command(draw(7)).startswith("python -m tests.sim --seed 7 --members 2 --minutes 0.025")
    assert Options(7).command(Options(7)) == "python -m tests.sim --seed 7 --no-shrink"


def test_corruption_below_the_frontier_is_repaired_while_the_group_works() -> None:
    result = play(Options(3, members=3, seconds=90, faults=frozenset({"rot", "loss"}), pace=1.5))
    assert result.violation == ""
    assert sum(gateway.disk.mended for gateway in result.world.gateways.values()) > 5


@pytest.mark.slow
def test_corruption_without_a_repair_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(LogRepair, "on_corrupt", lambda *_: None)
    failed = play(Options(3, members=3, seconds=60, faults=frozenset({"rot"}), pace=1.5))
    assert "cannot read positions" in failed.violation


@pytest.mark.slow
def test_a_member_that_missed_trimmed_frames_continues_with_a_snapshot() -> None:
    faults = frozenset({"trim", "kill", "power", "pause", "split", "wipe", "roster"})
    counts: Counter[str] = Counter()
    for seed in range(1, 7):
        result = play(Options(seed, members=(3, 4)[seed % 2], seconds=40, faults=faults, rate=15.0))
        assert result.violation == ""
        counts += result.world.counts
    assert counts["trims"] > 10
    assert counts["replaced"] > 3


def test_transactions_are_atomic_and_exactly_once_under_faults() -> None:
    faults = frozenset({"loss", "kill", "snipe", "split", "low", "restart", "rival", "forget"})
    counts: Counter[str] = Counter()
    for seed in range(1, 4):
        result = play(Options(seed, members=3, seconds=30, faults=faults, producers=1, stagers=2, committers=2, rate=8.0))
        assert result.violation == ""
        counts += result.world.counts + result.world.log.kinds
        counts["never visible"] += len(result.world.log.staging.ever) - len(result.world.log.staging.spent)
    assert counts["TXN"] > 20
    assert counts["refused staged"] > 5
    assert counts["never visible"] > 5


@pytest.mark.slow
def test_staged_batches_of_a_dead_producer_are_released() -> None:
    """As of a task that was killed: without a name it is forgotten when it was idle long enough."""
    run = Run(Options(3, members=3, producers=1, readers=0, rate=5.0, config=StackConfig(idle_producer_us=5 * SECOND)))
    world = run.world
    stagers = [Stager(world, f"{NAMELESS}s{number}", number) for number in (1, 2)]
    world.schedule.run(7 * SECOND // 2)
    for stager in stagers:
        stager.leave()
        stager.state = State.ENDED
    world.schedule.run(world.schedule.now + 90 * SECOND)
    assert world.log.state.staged, "a transaction may come"
    world.schedule.run(world.schedule.now + 120 * SECOND)
    assert not world.log.state.staged
    assert [producer.name for producer in world.log.state.producers.values()] == ["p0"]


@pytest.mark.slow
def test_a_commit_that_waits_for_its_rejection_is_not_ordered_after_a_later_one() -> None:
    """A reader asked for less than it had committed, then to go back; the first commit was ordered after the second one."""
    assert not play(MIXES["readers-back"].options(39)).violation
