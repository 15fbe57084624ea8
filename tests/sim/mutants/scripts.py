"""What happens in a run beside its faults: networks that are bad in one way, and whole scenes that show one rule."""

from __future__ import annotations

from collections import deque
from typing import Any

from tests.sim.mixes import Mix
from tests.sim.run import Run
from tests.sim.schedule import SECOND
from tutti_gateway.core.protocol.messages import (
    Asking,
    Confirm,
    Echo,
    Fetched,
    Forward,
    Install,
    Installed,
    No,
    Order,
    Propose,
    State,
    Vote,
)

OF_A_VIEW = (Asking, Confirm, Echo, Fetched, Forward, Install, Installed, No, Order, Propose, State, Vote)
LATE_SHARE = 0.05
KEPT = 40  # messages to each gateway that come again at the worst moment
MUTE_S = 0.4


def late_copies(run: Run) -> None:
    """Messages of a view come once more, seconds later; and when a view begins, what was said before comes all at once."""
    world = run.world
    network, chance = world.network, world.chance("late copies")
    send = network.send
    kept: dict[str, deque[tuple[str, Any, bytes]]] = {}
    began: set[tuple[str, int, type]] = set()

    def and_again(sender: str, to: str, message: Any, incarnation: bytes) -> None:
        send(sender, to, message, incarnation)
        if world.healing or not isinstance(message, OF_A_VIEW):
            return
        if chance.random() < LATE_SHARE:
            late_us = chance.uniform(0.2, 6) * SECOND
            world.schedule.after(late_us, network._arrive, sender, to, message, incarnation)
        if isinstance(message, Installed | State) and (sender, message.view, type(message)) not in began:
            began.add((sender, message.view, type(message)))
            for name in (sender, to):
                for one, old, disk in kept.get(name, ()):
                    late_us = 4 * chance.random() * network.path(sender, to).latency
                    world.schedule.after(late_us, network._hand_over, one, name, old, disk)
        if not isinstance(message, Confirm | Vote) or chance.random() < 0.2:
            kept.setdefault(to, deque(maxlen=KEPT)).append((sender, message, incarnation))

    vars(network).update(send=and_again)  # a method of this one object


def answers_lost(run: Run) -> None:
    """A producer does not hear its answers for a moment; meanwhile another one takes its name."""
    world = run.world
    chance = world.chance("answers lost")

    def again() -> None:
        if world.healing:
            return
        world.schedule.after(chance.uniform(0.5, 4) * SECOND, again)
        able = [one for one in run.producers if one.unanswered and one.running and one.process is not None]
        if able:
            producer = chance.choice(able)
            assert producer.process is not None
            gateway = producer.process.gateway.name
            world.cut_client(producer.name, gateway, 1)
            world.schedule.after(MUTE_S * SECOND, world.cut_client, producer.name, gateway, -1)
            world.schedule.after(MUTE_S * SECOND * chance.random(), run.faults._again, producer)

    world.schedule.after(3 * SECOND, again)


def lossy(run: Run) -> None:
    """A third of all messages is lost, all the time."""
    run.world.network.loss = 0.3


LATE = Mix("kill snipe broken leave split", members=(3, 3, 5), pace=5.0, rate=15.0, pipeline=16, script=late_copies)
