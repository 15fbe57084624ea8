"""Tests of the order of output in one iteration: messages to other gateways and clients leave before a thread of this gateway
wakes, and the disks get their requests in the stack's order.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.unit.node.driver_harness import A, Bench, placed, submit
from tests.unit.node.fakes import batch_frame
from tutti.data.client_protocol import Committed
from tutti_gateway.core.protocol.actions import Deliver, Persist, ReadLog, Reply, Send
from tutti_gateway.core.protocol.events import Persisted, Received, Several, SpaceChanged, Submitted
from tutti_gateway.core.protocol.messages import Confirm, Order, Vote


@pytest.fixture
def trail() -> list[str]:
    return []


@pytest.fixture
def bench(trail: list[str], monkeypatch: pytest.MonkeyPatch) -> Bench:
    """A driver whose edges note when they are used."""
    bench = Bench()
    bench.hello()

    def noting(edge: object, name: str) -> None:
        act: Callable[..., Any] = getattr(edge, name)

        def noted(*given: Any) -> Any:
            trail.append(name)
            return act(*given)

        monkeypatch.setattr(edge, name, noted)

    noting(bench.clients, "send")
    noting(bench.wire, "flush")
    for name in ("put", "deliver"):
        noting(bench.disk, name)
    bench.driver.__dict__.pop("_handlers", None)  # which knows the edges as they were
    return bench


def test_the_disk_is_woken_when_everything_that_others_wait_for_has_left(bench: Bench, trail: list[str]) -> None:
    frame = placed(batch_frame(), 3)
    # The stack's own order: written before sent, sent before delivered.
    bench.answers = {
        Persisted: [
            Persist(2, (placed(batch_frame(sequence=2), 4),)),
            Send(2, Vote(1 << 16 | 1, 3)),
            Deliver((frame,), (0,), frozenset(), 1),
            Reply(1, (Committed(1, 1, 1, 1, 0),)),
        ],
        Submitted: [Persist(1, (frame,))],
    }
    bench.say(submit(A, batch_frame()))
    trail.clear()
    bench.happen(Persisted(1))
    assert trail == ["flush", "send", "put", "deliver"]


def test_the_disk_gets_its_requests_in_the_stacks_order(bench: Bench, trail: list[str]) -> None:
    frames = [placed(batch_frame(sequence=sequence), 2 + sequence) for sequence in (1, 2)]
    bench.answers = {Submitted: [Persist(1, (frames[0],)), ReadLog(2, 1, 2), Persist(3, (frames[1],))]}
    bench.say(submit(A, batch_frame()))
    assert trail == ["put", "put", "put"]
    assert bench.disk.queued == [Persist(1, (frames[0],)), ReadLog(2, 1, 2), Persist(3, (frames[1],))]


def test_simultaneous_events_of_the_normal_case_are_one_step() -> None:
    bench = Bench()
    view = 1 << 16 | 1
    vote, order, confirm = (Received(2, message) for message in (Vote(view, 3), Order(view, ()), Confirm(view, 3)))
    low = SpaceChanged(True, "full")
    events = bench.happen(Persisted(1), vote, low, vote, order, confirm, Persisted(2), order)
    assert events == [Persisted(1), vote, low, Several((vote, order, confirm)), Persisted(2), order]
