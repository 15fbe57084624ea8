"""Leave the tests of the load generator out on a machine without a C compiler, and report why."""

from __future__ import annotations

from benchmarks.load.generator import lacking

collect_ignore_glob = ["test_*.py"] if lacking() else []


def pytest_report_header() -> str | None:
    return f"left out: the tests of the load generator, because {lacking()} is missing" if lacking() else None
