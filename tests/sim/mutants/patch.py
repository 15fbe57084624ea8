"""Changes of the real code at run time, undone at the end of a `with`: a line of a function, an entry of a table, an attribute.

A change names what it replaces. Where the code has become another one, it does not apply, and says so.
"""

from __future__ import annotations

import inspect
import textwrap
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from types import FunctionType
from typing import Any, Protocol


class DoesNotApply(Exception):
    """The code that a change names is not there any more."""


@dataclass(frozen=True)
class Edit:
    """In the source of a function of a module, or of a method or property of a class: `old`, which is there once, becomes `new`.

    Both are indented as after `textwrap.dedent`.
    """

    owner: Any
    name: str
    old: str
    new: str

    def function(self) -> FunctionType:
        """The function whose source it is."""
        found = vars(self.owner).get(self.name)
        found = found.fget if isinstance(found, property) else found
        if not isinstance(found, FunctionType):
            raise DoesNotApply(f"{self.owner!r} has no function {self.name}")
        return found


class Change(Protocol):
    """Another kind of change."""

    def apply(self) -> Callable[[], None]:
        """Make it; what is returned undoes it."""


@dataclass(frozen=True)
class Entry:
    """An entry of a table gets another value."""

    table: Any
    key: Any
    value: Any

    def apply(self) -> Callable[[], None]:
        """Make it; what is returned undoes it."""
        table, key = self.table, self.key
        if key not in table or table[key] == self.value:
            raise DoesNotApply(f"the table has {table.get(key)} at {key}")
        before, table[key] = table[key], self.value
        return lambda: table.__setitem__(key, before)


@dataclass(frozen=True)
class Value:
    """An attribute of a class or module gets another value; `value` is called with the one before if `wraps`."""

    owner: Any
    name: str
    value: Any
    wraps: bool = False

    def apply(self) -> Callable[[], None]:
        """Make it; what is returned undoes it."""
        owner, name = self.owner, self.name
        if name not in vars(owner):
            raise DoesNotApply(f"{owner!r} has no {name}")
        before = vars(owner)[name]
        setattr(owner, name, self.value(before) if self.wraps else self.value)
        return lambda: setattr(owner, name, before)


def _edited(function: FunctionType, edits: Sequence[Edit]) -> FunctionType:
    source = textwrap.dedent(inspect.getsource(function))
    for edit in edits:
        if source.count(edit.old) != 1:
            raise DoesNotApply(f"{function.__qualname__} has {source.count(edit.old)} times {edit.old!r}")
        source = source.replace(edit.old, edit.new)
    lines = source.splitlines()
    first = next(place for place, line in enumerate(lines) if line.startswith("def "))
    space: dict[str, Any] = {}
    code = compile("from __future__ import annotations\n" + "\n".join(lines[first:]), f"<{function.__qualname__}, changed>", "exec")
    exec(code, function.__globals__, space)  # noqa: S102 # it is the code itself, but for what this module is there to change
    made = space[function.__name__]
    assert isinstance(made, FunctionType)
    return made


@contextmanager
def applied(changes: Sequence[Edit | Change]) -> Iterator[None]:
    """The code with the changes in it.

    Raises:
        DoesNotApply: the code is not what a change takes it to be.
    """
    by_function: dict[FunctionType, list[Edit]] = {}
    with ExitStack() as undo:
        for change in changes:
            if isinstance(change, Edit):
                by_function.setdefault(change.function(), []).append(change)
            else:
                undo.callback(change.apply())
        for function, edits in by_function.items():
            # The function stays the same object, so that whoever imported it has the change too.
            undo.callback(setattr, function, "__code__", function.__code__)
            function.__code__ = _edited(function, edits).__code__
        yield
