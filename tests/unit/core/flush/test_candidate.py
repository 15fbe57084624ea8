"""Tests of candidates: which members a candidate asks, and that a failed attempt is repeated, also in a group of one."""

from __future__ import annotations

import msgspec
import pytest

from tests.transcripts.whole import Gateway
from tests.transcripts.whole_script import WholeScript
from tutti.data.view_id import counter_of, view_of
from tutti_gateway.core import limits
from tutti_gateway.core.protocol.actions import Action, Send, Suspect
from tutti_gateway.core.protocol.events import Received
from tutti_gateway.core.protocol.messages import Heartbeat, Install, Propose, Reject
from tutti_gateway.core.view.phases import Phase

PERIOD = 10  # heartbeats, of atomic
DISK_2 = b"g2/1".ljust(16, b"-")  # the incarnation of g2


def played(commands: str) -> WholeScript:
    script = WholeScript()
    script.run(f"quiet\ngateways g1 g2 g3\nuntil primary g1 g2 g3\n{commands}----\n")
    return script


def beat(script: WholeScript, member: Gateway, number: int, *, misses: bool) -> None:
    """Gateway `number`, which is down, says that it is there and has the log of `member`."""
    context = member.running.layers.context
    said = Heartbeat(
        sent_us=script.world.mono_us,
        log=context.window.log(),
        promised=context.view_state.accepted,
        accepted=context.view_state.accepted,
        end=context.window.end,
        frontier=context.window.frontier,
        misses=misses,
        hears=(1, 2, 3),
    )
    script.world.step(member, Received(number, said, f"g{number}/1".encode().ljust(16, b"-")))


def asked(script: WholeScript) -> list[tuple[int, int]]:
    """Every (view, to) that g1 proposes from now on."""
    found: list[tuple[int, int]] = []
    tell = script.world.tell

    def hear(who: str, what: Action | str) -> None:
        tell(who, what)
        if who == "g1" and isinstance(what, Send) and isinstance(what.message, Propose):
            found.append((what.message.view, what.to))

    script.world.tell = hear
    return found


def test_a_connected_member_is_asked_although_it_does_not_suspect_its_coordinator_yet() -> None:
    script = played("power g1\npower g2\npower g3\nstart g1\nbeats 3\n")
    member, found = script.world.members["g1"], asked(script)
    beat(script, member, 3, misses=False)
    assert member.running.phase is Phase.SEARCHING  # nothing is proposed before a majority misses its coordinator
    beat(script, member, 2, misses=True)
    script.run("settle\n----\n")
    assert sorted(to for _, to in found) == [2, 3]


def test_after_an_attempt_ended_by_corruption_no_connected_member_is_excluded() -> None:
    """g1 lost frames that only its disk had; g2, with an older view, does not know whether they were decided; g3 was excluded
    recently.
    """
    script = played(
        "client g1 s1 ewr\nbeats 2\nsplit g1,g3 g2\nuntil primary g1 g3\nhold ORDER g1>g3\nsubmit g1 s1 p1/1 1+10\nsettle\n"
    )
    script.run("power g1\npower g2\npower g3\nforget-held ORDER g1>g3\nheal\ndamage g1 6\nstart g1\n----\n")
    member, found = script.world.members["g1"], asked(script)
    membership = member.running.layers.membership
    for _ in range(limits.REJOIN_BOOTS_MAX):
        membership.duties.booted(3)
    script.run("start g2\nbeats 1\nsettle\n----\n")
    for _ in range(PERIOD):
        beat(script, member, 3, misses=True)
        script.run("beats 1\n----\n")
    assert membership.duties.must_wait(3)
    views = sorted({view for view, _ in found})
    assert [to for view, to in found if view == views[0]] == [2]
    assert {to for view, to in found if view == views[1]} == {2, 3}


def test_an_attempt_ends_when_all_answered_and_none_knows_the_corrupt_frames() -> None:
    script = played(
        "client g1 s1 ewr\nbeats 2\nsplit g1,g3 g2\nuntil primary g1 g3\nhold ORDER g1>g3\nsubmit g1 s1 p1/1 1+10\nsettle\n"
    )
    script.run("power g1\npower g2\npower g3\nforget-held ORDER g1>g3\nheal\ndamage g1 6\nstart g1\nstart g2\n----\n")
    script.run("beats 1\nsettle\n----\n")
    flush = script.world.members["g1"].running.layers.flush
    assert flush.attempt == 0
    assert flush.failed == "the end of the log is corrupt at gateway 'g1', and no other gateway has it"


def refused() -> tuple[WholeScript, Gateway, int]:
    """Let g1 ask g2, whose round trip is three heartbeats, and learn that it does not accept the view."""
    script = played("power g1\npower g2\npower g3\nstart g1\nbeats 3\n")
    member = script.world.members["g1"]
    flush = member.running.layers.flush
    peer = member.running.layers.peers.get(2)
    assert peer is not None
    peer.rtt_us, peer.spread_us = 3 * limits.HEARTBEAT_US, 0
    beat(script, member, 2, misses=True)
    script.run("settle\n----\n")
    view = flush.attempt
    script.world.step(member, Received(2, Reject(view, member.disk.scalars.accepted, "a coordinator is heard"), DISK_2))
    assert flush.attempt == view
    return script, member, view


def test_a_member_that_refused_and_then_accepted_frames_in_flight_counts() -> None:
    """A candidate asks again before the first answer arrives, and a member that heard another one then may hear none a moment
    later.
    """
    script, member, view = refused()
    flush = member.running.layers.flush
    script.run("beats 2\n----\n")
    said = msgspec.structs.replace(flush.state(), view=view)
    script.world.step(member, Received(2, said, DISK_2))
    script.run("beats 1\nsettle\n----\n")
    assert flush.attempt == view
    assert flush.phase is Phase.GATHERING


def test_a_member_that_refused_and_accepted_nothing_in_a_round_trip_ends_the_attempt() -> None:
    script, member, view = refused()
    flush = member.running.layers.flush
    script.run("beats 2\n----\n")
    assert flush.attempt == view
    script.run("beats 2\n----\n")
    assert flush.attempt == 0
    assert flush.failed == "gateway 2 refuses: a coordinator is heard"


def test_a_higher_promise_ends_the_attempt_at_once() -> None:
    script, member, view = refused()
    script.world.step(member, Received(2, Reject(view, view + 1, "a higher view is promised"), DISK_2))
    assert member.running.layers.flush.attempt == 0


def test_a_group_of_one_repeats_a_failed_attempt() -> None:
    """No other member waits or listens, but it still needs heartbeats, or it stays without a view permanently."""
    script = WholeScript()
    script.run("quiet\ngateways g1\nuntil primary g1\nkill g1\nslow g1\nstart g1\n----\n")
    told: list[Action | str] = []
    script.world.tell = lambda _, what: told.append(what)
    candidate = script.world.members["g1"].running.layers.flush.candidate
    assert candidate.attempt is not None
    candidate.attempt.beats = 3 * PERIOD  # its disk stood still while a client waited, who is gone
    candidate.fail()
    assert script.run("fast g1\nuntil primary g1\ncheck primary g1\n----\n").splitlines()[-1] == "ok primary g1"
    assert not [what for what in told if isinstance(what, Suspect)]  # it leaves nobody out, least of all itself


def test_a_member_long_without_a_view_awaits_the_answer_to_its_promise_before_it_proposes() -> None:
    """Otherwise each of two distant members would undo the other's view just before it is installed, without end."""
    script = played("power g1\npower g2\npower g3\nstart g2\n----\n")
    member = script.world.members["g2"]
    for _ in range(3 * PERIOD):
        script.run("beats 1\n----\n")
    view = view_of(counter_of(member.running.layers.context.view_state.accepted) + 5, 1)
    beat(script, member, 1, misses=True)
    script.world.step(member, Received(1, Propose(view, (1, 2, 3)), b"g1/1".ljust(16, b"-")))
    script.run("settle\n----\n")
    phases = []
    for _ in range(limits.CANDIDATE_HEARTBEATS + 8):
        beat(script, member, 1, misses=True)
        script.run("beats 1\n----\n")
        phases.append(member.running.phase)
    assert phases[: limits.CANDIDATE_HEARTBEATS] == [Phase.PROMISED] * limits.CANDIDATE_HEARTBEATS
    assert Phase.COLLECTING in phases, "and not for ever"


def answers_after(script: WholeScript, beats: int) -> list[int]:
    """Reconnect g3, which reports its log so many heartbeats after each request; return the views that g1 proposes until then."""
    found = asked(script)
    script.run("hold STATE g3>g1\nstart g3\n----\n")
    waited = 0
    for _ in range(20 * PERIOD):
        script.run("beats 1\n----\n")
        waited = waited + 1 if script.world.network.held else 0
        if waited == beats:
            script.run("let STATE g3>g1\nsettle\n----\n")
            waited = 0
        view = script.world.members["g3"].view
        if view is not None and view.primary:
            break
    else:
        raise AssertionError("g3 is never taken in")
    return sorted({view for view, _ in found})


def test_a_member_whose_answer_was_late_is_awaited_the_next_time() -> None:
    """Otherwise a distant or slow gateway is asked and excluded without end, and the others change their view each time."""
    script = played("kill g3\nuntil primary g1 g2\n")
    assert len(answers_after(script, 3)) == 2
    candidate = script.world.members["g1"].running.layers.flush.candidate
    assert candidate._extra_beats == 2  # beyond the first moment
    script.run("heal\nkill g3\nuntil primary g1 g2\n----\n")
    assert candidate._extra_beats == 0  # all of the last view answered at once


def test_the_same_message_is_not_repeated_within_a_heartbeat() -> None:
    script = played("kill g3\nuntil primary g1 g2\nhold STATE g3>g1\nstart g3\n")
    told: list[tuple[int, int]] = []

    def hear(who: str, what: Action | str) -> None:
        if who == "g1" and isinstance(what, Send) and isinstance(what.message, Install):
            told.append((what.message.view, what.to))

    script.world.tell = hear
    candidate = script.world.members["g1"].running.layers.flush.candidate
    for _ in range(2 * PERIOD):
        script.run("beats 1\n----\n")
        if told and candidate.attempt is None:
            break
    view = told[0][0]
    assert told == [(view, 2)]  # it is chosen by a heartbeat, as g3 does not answer


@pytest.mark.parametrize(("rtt_ms", "beats"), [(1, 0), (25, 0), (60, 1), (158, 2), (200, 2), (600, 6)])
def test_a_candidate_waits_two_round_trips_for_the_furthest_member(rtt_ms: int, beats: int) -> None:
    script = played("")
    peers = script.world.members["g1"].running.layers.peers
    peer = peers.get(3)
    assert peer is not None
    peer.rtt_us = rtt_ms * 1000
    assert peers.answer_beats() == beats


@pytest.mark.parametrize("higher", [1, 7])
def test_the_next_view_is_above_the_one_in_a_refusal(higher: int) -> None:
    """Otherwise a candidate that was away would propose a series of views that no member may promise."""
    script, member, view = refused()
    named = view_of(counter_of(view) + higher, 3)
    script.world.step(member, Received(2, Reject(view, named, "a higher view is promised"), DISK_2))
    assert member.running.layers.flush.candidate._next_view() == view_of(counter_of(named) + 1, 1)


@pytest.mark.parametrize("field", ["promised", "claim"])
def test_the_next_view_is_above_the_one_in_a_heartbeat(field: str) -> None:
    script = played("power g1\npower g2\npower g3\nstart g1\nbeats 3\n")
    member = script.world.members["g1"]
    beat(script, member, 2, misses=False)
    peer = member.running.layers.peers.get(2)
    assert peer is not None
    assert peer.beat is not None
    named = view_of(counter_of(member.running.layers.context.view_state.promised) + 5, 2)
    script.world.step(member, Received(2, msgspec.structs.replace(peer.beat, **{field: named}), DISK_2))
    assert member.running.layers.flush.candidate._next_view() == view_of(counter_of(named) + 1, 1)
