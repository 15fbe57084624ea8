"""Creates the Spark session of a backfill, or uses the session of `spark-submit`."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from importlib.util import find_spec
from typing import TYPE_CHECKING

from tutti.errors import UsageError, install_remedy
from tutti_spark.backfill.tables import DELTA_SETTINGS
from tutti_spark.common import java
from tutti_spark.launch import LOCAL_SETTINGS, spark_environment, spark_home
from tutti_spark.launch import check_spark as check_pyspark

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

DELTA_PACKAGE = "io.delta:delta-spark_2.13:4.3.1"
DELTA_MIN = (4, 3)  # Delta Lake 4.2 calls a constructor that Spark has changed since 4.1.0
_JAR = re.compile(r"delta-spark_[0-9._]+-([0-9]+)\.([0-9]+)[^/ ]*\.jar")
#: Dependencies of Delta Lake that the Spark installation already contains.
_PROVIDED = """
    com.fasterxml.jackson.core com.fasterxml.jackson.datatype com.github.luben com.google.code.findbugs commons-logging commons-pool
    io.airlift javax.annotation org.apache.hadoop org.apache.logging.log4j org.apache.parquet org.locationtech.jts org.roaringbitmap
    org.scala-lang org.slf4j org.xerial.snappy
"""
DELTA_JARS: dict[str, str] = {
    "spark.jars.packages": DELTA_PACKAGE,
    "spark.jars.excludes": ",".join(f"{group}:*" for group in _PROVIDED.split()),
}
#: Delta Lake computes the state of a table in 50 tasks by default, which is too many for one machine.
_LOCAL_DELTA = {"spark.databricks.delta.snapshotPartitions": "2"}


def check_spark() -> None:
    """Check that a supported Spark, and Java, are installed.

    Raises:
        UsageError: pyspark is missing or has an unsupported version.
        Unavailable: Java is missing or too old.
    """
    if find_spec("pyspark") is None:
        raise UsageError(f"`tutti backfill` runs on Spark, and pyspark is not installed: {install_remedy('spark')}")
    if not _submitted():
        check_pyspark()
        java.check(spark_home())


def session(name: str, kind: str, master: str | None, settings: Mapping[str, str]) -> SparkSession:
    """Return a Spark session that can write tables of the format `kind`.

    Args:
        name: name of the application.
        kind: delta or parquet.
        master: the Spark master (None: the configured master, or else all processors of this machine).
        settings: settings of Spark, which override the defaults of this function.

    Raises:
        UsageError: the session has no Delta Lake, or an unsupported version of Delta Lake.
    """
    from pyspark.sql import SparkSession

    ours: dict[str, str] = {}
    if not _submitted():
        os.environ.update(spark_environment())
        master = master or settings.get("spark.master") or "local[*]"
        ours |= {"spark.master": master, "spark.sql.session.timeZone": "UTC"}
        if master.startswith("local"):
            ours |= LOCAL_SETTINGS | (_LOCAL_DELTA if kind == "delta" else {})
        if kind == "delta":
            ours |= DELTA_SETTINGS
            if "spark.jars" not in settings:
                ours |= DELTA_JARS
    builder = SparkSession.builder.appName(name)
    for key, value in (ours | dict(settings)).items():
        builder = builder.config(key, value)
    spark = builder.getOrCreate()
    if kind == "delta":
        check_delta(spark)
    return spark


def check_delta(spark: SparkSession) -> None:
    """Raise UsageError unless the session has a version of Delta Lake that works with this Spark."""
    wanted = f"--packages {DELTA_PACKAGE} " + " ".join(f"--conf {key}={value}" for key, value in DELTA_SETTINGS.items())
    if any(spark.conf.get(key, "") != value for key, value in DELTA_SETTINGS.items()):
        raise UsageError(f"this Spark has no Delta Lake: start it with {wanted}, or use --format parquet")
    jars = spark.sparkContext._jsc.sc().listJars()
    found = _JAR.search(str(jars.mkString(" ")))
    if found is not None and (int(found[1]), int(found[2])) < DELTA_MIN:
        raise UsageError(
            f"this Spark {spark.version} has Delta Lake {found[1]}.{found[2]}, which fails as soon as a table has a checkpoint "
            f"(NoSuchMethodError): start it with {wanted}"
        )


def _submitted() -> bool:
    """Return True if `spark-submit` started this process, and so has already chosen master, settings and Java."""
    return "PYSPARK_GATEWAY_PORT" in os.environ
