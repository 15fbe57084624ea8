"""Tests of staging sessions: the epoch stays open while its batches wait for a transaction, and the batches are lost if it ends."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.unit.client.delivery.delivery_harness import NUMBER, Rig, sequences
from tutti import limits as common_limits
from tutti.data import client_protocol
from tutti.delivery.session import State
from tutti.errors import Aborted, Refused
from tutti_gateway.core import limits


def one_staged() -> Rig:
    """A producer that staged a batch, which is in the log."""
    rig = Rig(name="~abc", staged=True).ready()
    rig.send()
    rig.topic()
    (frame,) = rig.frames()
    assert frame.staged
    rig.commit(frame, 9)
    return rig


def forgotten_while_away(rig: Rig) -> None:
    rig.delivery.disconnected()
    rig.say(client_protocol.EpochFenced(rig.connect().request, 3))
    rig.opened(rig.hear(client_protocol.OpenProducer))


def aborted(rig: Rig) -> None:
    failing = rig.send()
    rig.frames()
    rig.say(client_protocol.AbortedAnswer(NUMBER, 1, 2, 1, "no space"))
    rig.opened(rig.hear(client_protocol.OpenProducer), sequence=1)
    with pytest.raises(Aborted, match="no space"):
        failing.result(0)


def test_a_pause_of_a_task_however_long_keeps_the_epoch_of_its_staged_batches() -> None:
    rig = one_staged()
    rig.now += common_limits.IDLE_PRODUCER_US * limits.STAGED_IDLE_FACTOR / 1e6 - 1
    rig.send(b"late")
    (frame,) = rig.frames()
    assert (frame.epoch, sequences([frame])) == (1, [(2, 1)])


def test_a_session_without_staged_batches_starts_another_epoch_after_a_pause() -> None:
    rig = Rig(name="~abc", staged=True).ready()
    rig.now += common_limits.IDLE_PRODUCER_US / 1e6
    rig.send()
    rig.opened(rig.hear(client_protocol.OpenProducer))
    rig.topic()
    assert [frame.epoch for frame in rig.frames()] == [2]


def refused(rig: Rig) -> None:
    failing = rig.send()
    rig.frames()
    rig.say(client_protocol.RefusedAnswer(NUMBER, 1, 2, "limit", "too many batches wait", retry=False))
    rig.opened(rig.hear(client_protocol.OpenProducer), sequence=1)
    with pytest.raises(Refused, match=r"sequence 2 were refused: too many batches wait$"):
        failing.result(0)


@pytest.mark.parametrize(
    ("end_epoch", "cause", "code"),
    [
        (forgotten_while_away, "the log opened another epoch", "staged"),
        (aborted, "were aborted: no space. They and all later records are in no log", "aborted"),
        (refused, "sequence 2 were refused: too many batches wait", "limit"),
    ],
)
def test_staged_batches_go_with_their_epoch_and_the_error_names_its_first_cause(
    end_epoch: Callable[[Rig], None], cause: str, code: str
) -> None:
    rig = one_staged()
    end_epoch(rig)
    with pytest.raises(
        Refused, match=f"{cause}.*[;:] the end of epoch 1 of producer '~abc' dropped all staged records: stage them again"
    ) as met:
        rig.send()
    assert met.value.code == code
    assert rig.delivery.session.state is State.ENDED


def test_batches_that_only_the_next_epoch_reports_as_staged_are_lost_too() -> None:
    rig = Rig(name="~abc", staged=True).ready()
    rig.send()
    rig.topic()
    rig.frames()
    rig.say(client_protocol.RefusedAnswer(NUMBER, 1, 1, "malformed", "arrived damaged", retry=False))
    rig.opened(rig.hear(client_protocol.OpenProducer), sequence=1)  # another copy committed
    with pytest.raises(Refused, match="stage them again"):
        rig.send()


def test_an_epoch_in_which_nothing_was_staged_ends_as_any_other() -> None:
    rig = Rig(name="~abc", staged=True).ready()
    rig.send()
    rig.topic()
    rig.frames()
    rig.say(client_protocol.AbortedAnswer(NUMBER, 1, 1, 1, "no space"))
    rig.opened(rig.hear(client_protocol.OpenProducer))
    rig.send()
    assert [(frame.epoch, frame.first_sequence) for frame in rig.frames()] == [(2, 1)]
