"""Fixtures of this folder: three gateways with records and a cluster of two workers, for all recipes; the test process has no
Spark.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.spark.clusters.standalone import Standalone
from tests.integration.spark.rows import numbered, send
from tests.support.running_group import RunningGroup

COUNT = 4000
SENT_AT_A_TIME = 500  # a producer's batch is not cut in parts, so that there are several to read by several tasks


def send_all(url: str, prefix: str) -> None:
    """Send `COUNT` records."""
    for first in range(0, COUNT, SENT_AT_A_TIME):
        send(url, "t", numbered(prefix, SENT_AT_A_TIME, first))


@pytest.fixture(autouse=True)
def _no_query_outlives_its_test() -> None:
    """Spark runs in other processes here: that of the folder above is not started."""


@pytest.fixture(scope="module")
def group(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningGroup]:
    with RunningGroup(tmp_path_factory.mktemp("group")) as three:
        send_all(three.url, "r")
        yield three


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Standalone]:
    with Standalone(tmp_path_factory.mktemp("cluster")) as running:
        yield running


@pytest.fixture
def shared(tmp_path: Path) -> Path:
    """The directory that driver and executors share."""
    directory = tmp_path / "shared"
    directory.mkdir()
    return directory
