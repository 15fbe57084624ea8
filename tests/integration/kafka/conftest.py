"""Fixtures of this folder: one Kafka broker for the tests of a worker, and three gateways for those of a module."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from benchmarks.kafka import Broker, broker, broker_jars
from tests.support.running_group import RunningGroup
from tests.support.spark_classes import SHORT


@pytest.fixture(scope="session")
def the_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """The broker of this test run; a test that kills it restarts it."""
    folder = broker_jars()
    assert folder is not None, "Kafka's jars could not be fetched from Maven's central repository, or there is no pyspark or Java"
    with broker(tmp_path_factory.mktemp("session-kafka"), folder, SHORT.split()) as made:
        yield made


@pytest.fixture(scope="session")
def kafka(the_broker: Broker) -> str:
    """HOST:PORT of it."""
    return the_broker.address


@pytest.fixture(scope="module")
def group(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningGroup]:
    """Three gateways."""
    with RunningGroup(tmp_path_factory.mktemp("group")) as group:
        yield group
