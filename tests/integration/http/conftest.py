"""Fixtures of this folder: three gateways and two processes of the HTTP connector, for all tests of a worker."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.integration.http.connector import Front
from tests.support.running_group import RunningGroup


@pytest.fixture(scope="session")
def group(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningGroup]:
    """The gateways."""
    with RunningGroup(tmp_path_factory.mktemp("session-group")) as group:
        yield group


@pytest.fixture(scope="session")
def fronts(group: RunningGroup, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Front, Front]]:
    """Two processes of one name."""
    root = tmp_path_factory.mktemp("session-fronts")
    with Front(root, group.url) as one, Front(root, group.url) as other:
        yield one, other
