"""Tests of the group clock: one wrong wall clock never dates the ticks of a log, whichever gateway coordinates."""

from __future__ import annotations

import msgspec
import pytest

from tests.transcripts.group import WALL_US
from tests.transcripts.whole_script import WholeScript
from tests.unit.core.stacks import batches, opened
from tutti.data.frames.bodies import TickBody, decode_body
from tutti.data.frames.frame import Frame, Kind
from tutti_gateway.core import limits
from tutti_gateway.core.protocol.events import Event, Now, Received, TimeAdvanced, submitted
from tutti_gateway.core.protocol.messages import Heartbeat
from tutti_gateway.core.view.group_status import GroupStatus

HOUR = 3600 * 1_000_000
YEARS = 10 * 365 * 24 * HOUR
SECOND = 1_000_000


def tick_times(log: list[Frame]) -> list[int]:
    return [decode_body(TickBody, frame.body).time_us for frame in log if frame.kind == Kind.TICK]


def three() -> WholeScript:
    script = WholeScript()
    script.world.config = msgspec.structs.replace(script.world.config, tick_interval_us=SECOND)
    script.run("quiet\ngateways g1 g2 g3\nuntil primary g1 g2 g3\nclient g1 s1 ewr\nbeats 5\n----\n")
    return script


def set_clock(script: WholeScript, name: str, ahead_us: int) -> None:
    """The wall clock of a running gateway is wrong by so much."""
    stack = script.world.members[name].running
    step = stack.step

    def wrong(event: Event, now: Now) -> list[object]:
        return list(step(event, Now(now.mono_us, max(0, now.wall_us + ahead_us))))

    stack.step = wrong  # type: ignore[method-assign, assignment] # only the clock is another one


def send(script: WholeScript, first: int) -> None:
    script.run(f"submit g1 s1 p1/1 {first}+1\nbeats 10\n----\n")


def ticks(script: WholeScript) -> list[int]:
    """How far ticks are from the time at which they are seen, each no more than a few seconds in a run of this length."""
    return [time_us - WALL_US - script.world.mono_us for time_us in tick_times(script.world.members["g1"].disk.frames)]


@pytest.mark.parametrize("ahead_us", [YEARS, -YEARS])
@pytest.mark.parametrize("name", ["g1", "g2"])
def test_one_wrong_clock_of_three_dates_no_tick(name: str, ahead_us: int) -> None:
    script = three()
    set_clock(script, name, ahead_us)
    script.run("beats 3\n----\n")
    for number in range(1, 4):
        send(script, number)
    assert len(ticks(script)) >= 3
    assert all(-60 * SECOND < apart <= SECOND for apart in ticks(script))
    assert abs(GroupStatus(script.world.members[name].running).clock_ahead_us - ahead_us) < SECOND
    assert abs(GroupStatus(script.world.members["g3"].running).clock_ahead_us) < SECOND


def test_of_two_clocks_the_earlier_one_counts() -> None:
    script = three()
    set_clock(script, "g1", YEARS)
    script.run("kill g3\nuntil primary g1 g2\nbeats 3\n----\n")
    for number in range(1, 4):
        send(script, number)
    assert all(apart <= SECOND for apart in ticks(script))


def test_a_clock_of_an_older_release_is_not_counted() -> None:
    script = three()
    clocks = script.world.members["g1"].running.layers.clocks
    for peer in script.world.members["g1"].running.layers.peers:
        assert peer.beat is not None
        peer.beat = msgspec.structs.replace(peer.beat, wall_us=0 if peer.name == "g2" else peer.beat.wall_us - HOUR)
    assert clocks.wall_us() <= WALL_US + script.world.mono_us - HOUR + SECOND, "the earlier one of two"
    assert clocks.ahead_us >= HOUR - SECOND


def test_the_only_clock_of_a_group_of_one_leaps_and_comes_back() -> None:
    group, member = opened()
    for number in range(1, 7):
        group.wall_us += YEARS if number == 3 else 0
        group.step(member, submitted(1, batches(number, 1)))
        group.settle()
        group.advance(1_100_000)
        group.settle()
        group.wall_us -= YEARS if number == 3 else 0
    times = tick_times(member.log)
    assert len(times) == 6
    assert times == sorted(times)
    assert times[-1] <= group.wall_us


def test_a_leap_that_lasts_is_believed() -> None:
    group, member = opened()
    group.step(member, submitted(1, batches(1, 1)))
    group.advance(1_100_000)
    group.settle()
    group.wall_us += HOUR
    for number in range(2, 5):
        group.step(member, submitted(1, batches(number, 1)))
        group.settle()
        group.advance(limits.CLOCK_LEAP_LASTS_US // 2 + 1_100_000)
        group.settle()
    times = tick_times(member.log)
    assert times[1] < group.wall_us - HOUR // 2, "the leap is not believed at once"
    assert group.wall_us - times[-1] < limits.CLOCK_LEAP_LASTS_US, "the hour passed while the machine slept"


def test_a_leap_between_two_readings_does_not_move_the_group_s_time() -> None:
    group, member = opened()
    group.advance(SECOND)
    group.step(member, TimeAdvanced())
    before_us = GroupStatus(member.stack).group_time_us(group.mono_us)
    assert before_us == group.wall_us
    group.wall_us += YEARS
    group.step(member, submitted(1, batches(1, 1)))
    assert GroupStatus(member.stack).group_time_us(group.mono_us + SECOND) == before_us + SECOND


def test_an_idle_group_of_one_believes_a_leap_that_lasts_and_no_other() -> None:
    group, member = opened()
    survey = GroupStatus(member.stack)
    group.advance(SECOND)
    group.step(member, TimeAdvanced())
    for lasts_us, believed in ((limits.CLOCK_LEAP_LASTS_US - SECOND, False), (limits.CLOCK_LEAP_LASTS_US, True)):
        group.wall_us += YEARS
        for _ in range(lasts_us // SECOND + 1):
            group.step(member, TimeAdvanced())
            group.advance(SECOND)
        leapt = survey.group_time_us(group.mono_us) == group.wall_us
        assert (leapt, survey.clock_ahead_us) == (believed, 0 if believed else YEARS)
        group.wall_us -= YEARS
        group.step(member, TimeAdvanced())
        assert (survey.group_time_us(group.mono_us), survey.clock_ahead_us) == (group.wall_us, 0), "a clock set back is followed"


def test_the_clock_of_a_voter_counts_from_its_first_heartbeat_on() -> None:
    script = three()
    member = script.world.members["g1"]
    (peer, *_) = member.running.layers.peers
    assert peer.beat is not None
    wrong = Now(script.world.mono_us, WALL_US + script.world.mono_us + YEARS)
    member.running.layers.clocks.offset_us = wrong.wall_us - wrong.mono_us  # as a start with a wrong clock leaves it
    member.running.step(Received(peer.number, peer.beat), wrong)
    time_us = GroupStatus(member.running).group_time_us(wrong.mono_us)
    assert abs(time_us - wrong.wall_us + YEARS) < SECOND


def test_heartbeats_from_before_the_end_of_a_pause_do_not_date_the_group_s_clock() -> None:
    """A process that was suspended handles heartbeats that are as old as the pause, and its own clock is right all the time."""
    script = three()
    stack = script.world.members["g3"].running
    step, waiting, clocks = stack.step, list[Received](), list[int]()

    def suspended(event: Event, now: Now) -> list[object]:
        del now
        if isinstance(event, Received) and isinstance(event.message, Heartbeat):
            waiting.append(event)
            clocks.append(event.message.wall_us)
        return []

    stack.step = suspended  # type: ignore[method-assign, assignment] # the process handles nothing
    script.run("beats 300\n----\n")
    assert len(waiting) > 300
    now = Now(script.world.mono_us, WALL_US + script.world.mono_us)
    assert now.wall_us - clocks[0] > 2 * limits.CLOCK_APART_US
    survey, tick_us = GroupStatus(stack), WALL_US + script.world.mono_us
    for event in waiting:
        step(event, now)
        assert abs(survey.clock_ahead_us) <= limits.ROUND_TRIP_US_MAX
        assert abs(survey.group_time_us(now.mono_us) - tick_us) <= limits.ROUND_TRIP_US_MAX
