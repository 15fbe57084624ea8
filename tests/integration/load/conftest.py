"""Leave the tests of the load generator out on a machine without a C compiler. The header of the test run reports why."""

from __future__ import annotations

from benchmarks.load.generator import lacking

collect_ignore_glob = ["test_*.py"] if lacking() else []
