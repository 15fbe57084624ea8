"""Tests of Spark with a secured group: the driver and tasks read and write, and no plan and no message has the token."""

from __future__ import annotations

import contextlib
import io
from pathlib import Path

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from tests.support.secured import SecuredFiles
from tutti import Producer

pytestmark = [pytest.mark.spark, pytest.mark.timeout(400)]


def test_a_query_authenticates_by_its_token_file_and_shows_no_token(spark: SparkSession, tmp_path: Path) -> None:
    house = SecuredFiles(tmp_path)
    with house.gateway() as gateway:
        with Producer(gateway.url, credentials=house.credentials("all")) as producer:
            for topic in ("flights", "delays"):
                producer.send(topic, topic.encode()).result(10)

        def read(topic: str, **options: str) -> DataFrame:
            found = spark.read.format("tutti").option("gateways", gateway.url).option("shortCircuit", "false")
            return found.option("topics", topic).options(**options).load()

        mine = {"tokenFile": str(house.client_file("ops")), "token": house.tokens["reader"]}
        rows = read("flights", **mine)
        assert [bytes(row.value) for row in rows.select("value").collect()] == [b"flights"]
        told = io.StringIO()
        with contextlib.redirect_stdout(told):
            rows.explain("extended")
        assert "tutti" in told.getvalue()
        with pytest.raises(PySparkException, match="may not read topic 'delays'") as error:
            read("delays", **mine).collect()
        with pytest.raises(PySparkException, match="accepts only clients that encrypt and show a token"):
            read("flights").collect()
        written = rows.select("value").write.format("tutti").mode("append").option("gateways", gateway.url)
        written = written.option("tokenFile", str(house.client_file("feed")))
        written.option("topic", "flights-again").save()
        with pytest.raises(PySparkException, match="may not write to topic 'delays'") as denied:
            written.option("topic", "delays").save()
        again = read("flights-again", **mine)
        assert [bytes(row.value) for row in again.collect()] == [b"flights"]
        for token in house.tokens.values():
            assert token not in told.getvalue() + str(error.value) + str(denied.value) + gateway.log_tail(10**7)
