"""A lane's end is lost, and the disk of the other member of its last attempt was replaced: a third gateway has it, and is away.

The case in steps, each some seconds after the one before:

1. The origin and one other gateway are cut off from the rest: the attempt has these two members.
2. The origin loses its power and the end of its lane. A third gateway reaches the other one alone, and learns the end from it.
3. The third gateway is killed and the other one gets a blank disk. All hear each other, the origin starts, and the operator
   replaces the disk. The new disk has the number of the one that voted and nothing of what that held.
4. The third gateway comes back.
"""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import TYPE_CHECKING

from tests.sim.lane_store import Lane
from tests.sim.schedule import SECOND

if TYPE_CHECKING:
    from tests.sim.gateways import Gateway
    from tests.sim.operators import Operator
    from tests.sim.world import World

MEMBERS_MIN = 5  # the group decides without the third gateway and the disk that is replaced


class Exchange:
    """One such case."""

    def __init__(self, world: World, operator: Operator, gateways: Sequence[Gateway], chance: Random) -> None:
        """`gateways`: the origin, the other member and the third one."""
        self._world = world
        self._operator = operator
        self._origin, self._other, self._third = gateways
        self._chance = chance
        self._blocked: list[tuple[str, str]] = []
        self._over = False

    def begin(self) -> None:
        """Do the first step."""
        self._world.note("", f"{self._origin.name} and {self._other.name} are a part of their own")
        self._part(self._origin, self._other)
        self._world.schedule.after(self._chance.uniform(2, 5) * SECOND, self._lose)

    def end(self) -> None:
        """Whatever was done: the network is whole and all gateways run."""
        self._over = True
        self._part()
        for gateway in (self._origin, self._other, self._third):
            gateway.wanted = True
            gateway.start()

    def _part(self, *gateways: Gateway) -> None:
        """These gateways hear each other and no others do; with none of them all hear each other."""
        self._world.network.unblock(self._blocked)
        inside = {gateway.name for gateway in gateways}
        outside = [name for name in self._world.gateways if name not in inside]
        self._blocked = [pair for one in inside for name in outside for pair in ((one, name), (name, one))]
        self._world.network.block(self._blocked)

    def _lose(self) -> None:
        world = self._world
        if self._over:
            return
        what = "" if world.lanes.any_heals else world.lanes.lose_end(self._origin, [self._other])
        if not what:
            self.end()
            return
        world.note("", what)
        self._origin.wanted = False
        self._part(self._other, self._third)
        world.schedule.after(self._chance.uniform(1.5, 3) * SECOND, self._replace)

    def _replace(self) -> None:
        world, other, third = self._world, self._other, self._third
        if self._over:
            return
        if not self._learned() or self._operator.wishes or world.weak or not world.may_weaken(other):
            self.end()
            return
        world.counts["lane disks exchanged"] += 1
        third.wanted = False
        third.kill()
        other.wipe()
        world.replaced(other.name)
        self._part()
        for gateway in (self._origin, other):
            gateway.wanted = True
            gateway.start()
        world.schedule.after(self._chance.uniform(10, 25) * SECOND, self._return)

    def _learned(self) -> bool:
        """Whether the third gateway has all of the lane that the other one has decided."""
        keys = [key for key in self._other.disk.lanes.lanes if key[1] == self._origin.incarnation]
        shown = [[one.disk.lanes.lanes.get(key, Lane()).shown for key in keys] for one in (self._other, self._third)]
        return bool(keys) and shown[0] == shown[1]

    def _return(self) -> None:
        if not self._over:
            self.end()
