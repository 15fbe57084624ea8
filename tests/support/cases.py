"""Cases of a parametrized test, divided between `make test-fast` and `make test-rest`."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest


def first_fast(cases: Iterable[Any], count: int) -> list[Any]:
    """Return the cases with all but the first `count` marked as slow."""
    return [case if number < count else pytest.param(case, marks=pytest.mark.slow) for number, case in enumerate(cases)]
