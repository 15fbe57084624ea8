"""Tests of docs/reference/support.md: its versions are those that the project declares, pins and tests."""

from __future__ import annotations

import re

from benchmarks.kafka import BROKER_VERSION
from tools.release_check import ROOT
from tools.wheels import supported
from tutti_spark.common.requirements import JAVA_MIN, SPARK


def row(software: str) -> list[str]:
    """Return the cells of one row: supported and tested versions."""
    page = (ROOT / "docs/reference/support.md").read_text("utf-8")
    found = re.search(rf"^\| {re.escape(software)} \| (.+?) \| (.+?) \|", page, re.MULTILINE)
    assert found, f"the page has no row for {software}"
    return [found[1], found[2]]


def test_python_versions_are_those_of_the_project() -> None:
    assert row("Python")[0].split(", ") == supported(ROOT)


def test_spark_versions_are_those_that_the_source_accepts_and_the_lock_files_pin() -> None:
    versions, tested = row("Spark (pyspark)")
    accepted = versions.split(", ")
    major, minor = map(int, accepted[-1].split("."))
    assert (accepted[0], f"{major}.{minor + 1}") == (SPARK.least, SPARK.below)
    pinned = re.findall(r"^pyspark==(\S+)", (ROOT / "requirements.lock").read_text(), re.MULTILINE)
    others = [path.stem.removeprefix("requirements-pyspark-") for path in sorted(ROOT.glob("requirements-pyspark-*.lock"))]
    assert re.findall(r"(?<!=)\b\d+\.\d+\.\d+", tested) == [*pinned, *others]


def test_java_and_kafka_are_those_of_the_checks_and_of_the_tests() -> None:
    assert row("Java")[0] == f"{JAVA_MIN} or newer"
    assert row("Kafka brokers")[1] == BROKER_VERSION
