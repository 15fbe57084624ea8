"""`pytest tests/transcripts --rewrite` writes the transcripts anew; the difference is then read like any other change."""

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--rewrite", action="store_true", help="write what the stacks do now into the transcripts")
