"""State machines as tables: what is absent is illegal, and the diagrams in docs/ are drawn from the same tables."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from typing import Generic, TypeVar

from tutti.errors import InvariantViolated

State = TypeVar("State", bound=enum.Enum)
Input = TypeVar("Input", bound=enum.Enum)


class Machine(Generic[State, Input]):
    """One machine at work: `on(input)` moves it along its table.

    Attributes:
        state: where it is now.
    """

    __slots__ = ("_name", "_table", "state")

    def __init__(self, name: str, table: Mapping[tuple[State, Input], State], start: State) -> None:
        self._name = name
        self._table = table
        self.state = start

    def on(self, input_: Input) -> State:
        """Move and return the new state.

        Raises:
            InvariantViolated: the table has no such transition.
        """
        after = self._table.get((self.state, input_))
        if after is None:
            raise InvariantViolated(f"{self._name}: {input_.value!r} cannot happen in {self.state.value!r}")
        self.state = after
        return after
