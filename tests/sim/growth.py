"""Whether anything in a stack grows without end: every container in every layer is looked at when all is calm."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

from tutti.data.frames.frame import Frame
from tutti.data.log_state import LogState
from tutti_gateway.core.lanes.lane import Lane
from tutti_gateway.core.lanes.lane_activation import Lanes

CALM_MAX = 400  # entries of one container when nobody waits for anything: what the log says is not counted
CONTAINERS = (dict, list, set, frozenset, tuple, deque)
WORDS = (str, bytes, int, float, bool, type(None), Frame, LogState, type)


def containers(
    thing: Any, name: str = "layers", but: Callable[[Any, str], bool] = lambda _one, _slot: False
) -> Iterator[tuple[str, int]]:
    """Every container that can be reached, by the way there, and how many entries it has; `but` says which are not looked at."""
    seen: set[int] = set()
    waiting: list[tuple[str, Any]] = [(name, thing)]
    while waiting:
        where, one = waiting.pop()
        if isinstance(one, WORDS) or callable(one) or id(one) in seen:
            continue
        seen.add(id(one))
        if isinstance(one, CONTAINERS):
            yield where, len(one)
            inside = one.values() if isinstance(one, dict) else one
            waiting += [(f"{where}[]", entry) for entry in inside]
        elif type(one).__module__.startswith("tutti_gateway.core"):
            names = [
                *getattr(one, "__dict__", ()),
                *(slot for kind in type(one).__mro__ for slot in getattr(kind, "__slots__", ())),
            ]
            waiting += [(f"{where}.{slot}", getattr(one, slot)) for slot in names if hasattr(one, slot) and not but(one, slot)]


def grown(layers: Any, allowed: int = CALM_MAX) -> str:
    """The first container that holds more than a stack at rest may hold; empty if there is none."""
    roster = layers.context.window.state.roster
    disks = {(voter.number, voter.incarnation) for voter in roster.values()}
    named = layers.context.view_state.me in roster

    def bounded(one: Any, slot: str) -> bool:
        """Whether it cannot grow: the undecided end of a lane whose disk is gone for good, which stays as it was; and what a start
        found of a gateway that no roster names.
        """
        if isinstance(one, Lane) and slot == "_tail":
            return (one.origin, one.incarnation) not in disks
        return isinstance(one, Lanes) and slot == "_logs" and not named

    return next((f"{where} holds {count}" for where, count in containers(layers, but=bounded) if count > allowed), "")
