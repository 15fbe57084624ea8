"""What the tests of both checkers do with a history in which every promise is kept: break one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, TypeVar


class Told(Protocol):
    """What clients and gateways tell."""

    def check(self) -> list[str]:
        """What a checker finds in it."""


History = TypeVar("History", bound=Told)


def expect_found(told: History, break_it: Callable[[History], object], what: str) -> None:
    """Nothing is found before a promise is broken, and then a finding that begins with `what`."""
    assert told.check() == []
    break_it(told)
    findings = told.check()
    assert any(finding.startswith(what) for finding in findings), findings
