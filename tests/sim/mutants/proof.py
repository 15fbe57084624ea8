"""`python -m tests.sim.mutants.proof NAME TEST`: runs a test as it is, then with a mutant in the code.

The exit code is 0 if the test passes first and fails then, 1 if it passes both times, 2 if it does not pass first.
"""

from __future__ import annotations

import os
import sys

import pytest

from tests.sim.mutants.catalogue import by_name


def main() -> int:
    """Run it twice."""
    name, test = sys.argv[1:]
    os.environ["CI"] = "1"  # a property then draws the same examples each time, so that a mutant is found always or never
    if _run(test):
        return 2
    with by_name(name).applied():
        return 0 if _run(test) == pytest.ExitCode.TESTS_FAILED else 1


def _run(test: str) -> int:
    return int(pytest.main(["-q", "-x", "-p", "no:cacheprovider", "--no-header", test]))


if __name__ == "__main__":
    sys.exit(main())
