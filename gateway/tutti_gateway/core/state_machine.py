"""State machines as tables, in which an absent transition is illegal. The diagrams in the docs are generated from these tables."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from typing import Generic, TypeVar

from tutti.errors import InvariantViolated

State = TypeVar("State", bound=enum.Enum)
Input = TypeVar("Input", bound=enum.Enum)


class Machine(Generic[State, Input]):
    """A state machine with a current state, which `on(input)` moves to the next state of the table.

    Attributes:
        state: the current state of the machine.
    """

    __slots__ = ("_name", "_table", "state")

    def __init__(self, name: str, table: Mapping[tuple[State, Input], State], start: State) -> None:
        self._name = name
        self._table = table
        self.state = start

    def on(self, input_: Input) -> State:
        """Move to the next state of the table, and return that state.

        Raises:
            InvariantViolated: the table has no transition from the current state for this input.
        """
        after = self._table.get((self.state, input_))
        # An absent transition is a defect of the code, so the state is not trustworthy and the member must stop (lifecycle, L5).
        if after is None:
            raise InvariantViolated(f"{self._name}: {input_.value!r} cannot happen in {self.state.value!r}")
        self.state = after
        return after
