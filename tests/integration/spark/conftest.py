"""Fixtures of this folder: one Spark session and one gateway for all tests, which use different topics and directories."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.support.gateway_process import GatewayProcess
from tutti_spark.launch import LOCAL_SETTINGS, spark_environment


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    before = dict(os.environ)
    os.environ.update(spark_environment())
    scratch = tmp_path_factory.mktemp("session-spark")
    builder = SparkSession.builder.master("local[2]").config("spark.sql.shuffle.partitions", 2)
    for name, value in LOCAL_SETTINGS.items():
        builder = builder.config(name, value)
    session = (
        builder.config("spark.local.dir", str(scratch))
        .config("spark.sql.warehouse.dir", str(scratch / "warehouse"))
        .config("spark.sql.session.timeZone", "UTC")
        .getOrCreate()
    )
    yield session
    gateway = session.sparkContext._gateway
    session.stop()
    assert gateway is not None
    gateway.shutdown()
    process = gateway.proc
    process.stdin.close()
    process.wait(30)
    os.environ.clear()
    os.environ.update(before)


@pytest.fixture(autouse=True)
def _no_query_outlives_its_test(spark: SparkSession) -> Iterator[None]:
    yield
    for query in spark.streams.active:
        query.stop()


@pytest.fixture(scope="session")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatewayProcess]:
    with GatewayProcess(tmp_path_factory.mktemp("session-gateway")) as running:
        yield running


@pytest.fixture
def own_gateway(tmp_path: Path) -> Iterator[GatewayProcess]:
    """A gateway that a test may stop, or whose complete log it reads."""
    with GatewayProcess(tmp_path) as running:
        yield running
