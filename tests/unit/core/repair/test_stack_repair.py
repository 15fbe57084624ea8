"""Tests of repair in the complete stack: members repair frames that the network loses."""

from __future__ import annotations

import pytest

from tests.transcripts.group import Group, incarnation
from tests.unit.core.stacks import answers, batches, three
from tutti.data.client_protocol import Committed
from tutti_gateway.core.protocol import codec
from tutti_gateway.core.protocol.events import EpochAsked, TopicAsked, submitted
from tutti_gateway.core.protocol.messages import Echo, Message, Order, Repair


def lose(group: Group, to: str, kinds: tuple[type[Message], ...]) -> int:
    """Take messages of these kinds to a member out of the network; how many there were."""
    lost = [letter for letter in group.network if letter[1].name == to and isinstance(codec.decode_message(letter[2]), kinds)]
    group.network = [letter for letter in group.network if letter not in lost]
    return len(lost)


def sent(group: Group, kind: type[Message]) -> list[str]:
    """From whom messages of one kind are on their way."""
    return [sender.name for sender, _, data in group.network if isinstance(codec.decode_message(data), kind)]


@pytest.mark.parametrize("body", [b"small", bytes(8192)])
@pytest.mark.parametrize("loser", ["g2", "g3"])
def test_a_lost_message_of_the_stream_is_repaired_and_decided(loser: str, body: bytes) -> None:
    group = three()
    first, member = group.members["g1"], group.members[loser]
    group.step(first, EpochAsked(1, 1, "p", incarnation("p"), 1))
    group.step(first, TopicAsked(1, 2, "t"))
    group.settle()
    window = member.stack.layers.context.window
    end = window.end
    group.step(first, submitted(1, batches(1, 2, body)))
    assert lose(group, loser, (Order, Echo)) == 1
    group.step(first, submitted(1, batches(3, 2, body)))
    group.settle()
    assert (window.end, len(answers(first, Committed))) == (end, 0)
    repairs: list[str] = []
    for _ in range(40):
        group.advance(1_000)
        while group.network:
            repairs += sent(group, Repair)
            group.deliver()
    assert window.end == end + 4
    assert repairs
    group.settle()
    assert [answer.offset for answer in answers(first, Committed) if isinstance(answer, Committed)] == [0, 1, 2, 3]
    assert group.problems == []
