"""`python -m tests.sim.mutants.proof NAME TEST`: runs a test with a mutant in the code (none, if NAME is empty)."""

from __future__ import annotations

import sys

import pytest

from tests.sim.mutants.catalogue import by_name
from tests.sim.mutants.patch import applied


def main() -> int:
    """Run it; pytest's exit code."""
    name, test = sys.argv[1:]
    with applied(by_name(name).changes if name else ()):
        return int(pytest.main(["-q", "-x", "-p", "no:cacheprovider", "--no-header", test]))


if __name__ == "__main__":
    sys.exit(main())
