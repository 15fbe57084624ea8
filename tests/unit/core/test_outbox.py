"""Tests of the outbox: the actions of a step leave in the safe order, whatever the order of the calls, and timers move only if
needed.
"""

from typing import get_args

from tutti.data.client_protocol import Done
from tutti.data.hard_state import HardState
from tutti_gateway.core.outbox import Outbox
from tutti_gateway.core.protocol.actions import (
    Action,
    Deliver,
    DeliverUnordered,
    Dropped,
    Halt,
    LaneHeld,
    LogReplaced,
    Peers,
    Persist,
    PersistLane,
    ReadIndex,
    ReadLane,
    ReadLog,
    ReadSnapshot,
    RepairLane,
    RepairLog,
    Reply,
    Send,
    SetTimer,
    Stopped,
    Suspect,
    ViewInstalled,
)
from tutti_gateway.core.protocol.events import Now
from tutti_gateway.core.protocol.messages import Confirm, Vote
from tutti_gateway.core.view.view_state import ViewState


def outbox() -> Outbox:
    standing = ViewState()
    standing.me = 1
    made = Outbox(standing)
    made.now = Now(1000, 0)
    return made


def test_the_order_is_persist_send_deliver_reply_view_suspect_timer_end() -> None:
    box = outbox()
    box.stopped()
    box.halt("why")
    box.drop(Vote(1, 1), 3, "of another view")
    box.peers(((2, "g2", "g2:7400"),))
    box.suspect(2, "late")
    box.installed()
    box.read_index(1, True)
    box.answers(7).append(Done(1))
    box.deliver_lane(DeliverUnordered(1, b"", 0, ()))
    box.deliver((), (), frozenset(), 0)
    box.log_replaced(1, 0)
    box.send(2, Confirm(1, 1))
    box.write_lane(PersistLane(1, 1, b""))
    box.write_lane(ReadLane(2, 1, b"", 1, 2))
    box.write_lane(RepairLane(1, b"", ()))
    box.write_lane(LaneHeld(1, b"", 1))
    box.read_log(1, 2)
    box.read_snapshot(0, 0)
    box.repair_log(())
    box.persist(hard_state=HardState())
    kinds = [type(action) for action in box.drain(5000)]
    written = [Persist, ReadLog, ReadSnapshot, RepairLog, PersistLane, ReadLane, RepairLane, LaneHeld]
    told = [Deliver, LogReplaced, DeliverUnordered, Reply, ReadIndex]
    assert kinds == [*written, Send, *told, ViewInstalled, Suspect, Peers, Dropped, SetTimer, Stopped, Halt]
    assert tuple(kinds[:-2]) == get_args(Action)[:-2], "docs/explanation/protocol.md lists them in this order"
    assert box.drain(5000) == []


def test_tokens_increase_and_name_one_persist_each() -> None:
    box = outbox()
    assert [box.persist(), box.persist()] == [1, 2]
    box.drain(None)
    assert box.persist() == 3


def test_messages_to_itself_stay_inside() -> None:
    box = outbox()
    box.send(1, Vote(1, 5))
    assert list(box.local) == [Vote(1, 5)]
    assert box.drain(None) == []


def test_no_answer_goes_to_number_0_or_is_empty() -> None:
    box = outbox()
    box.answers(0).append(Done(1))
    box.answers(3)
    assert box.drain(None) == []


def test_a_timer_is_set_when_it_comes_earlier_or_the_last_one_came() -> None:
    box = outbox()
    assert box.drain(5000) == [SetTimer(5000)]
    assert box.drain(6000) == []
    assert box.drain(None) == []
    assert box.drain(4000) == [SetTimer(4000)]
    box.timer_fired()
    assert box.drain(6000) == [SetTimer(6000)]
