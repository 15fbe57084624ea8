"""`python -m tests.support.spark_classes FILE`: run a short Spark job and archive the classes that it loads (class data sharing).

A JVM that starts with the archive needs a third of the time. Without it the tests are only slower.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

FILE = Path(sys.prefix) / "spark-classes.jsa"
#: The second compiler occupies one of two processors, and short jobs end before its code pays off.
SHORT = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
_RUN_S_MAX = 300
_JOB = """
import sys
from pyspark.sql import SparkSession, functions as f
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition

class Numbers(DataSource):
    def schema(self):
        return "n bigint"
    def reader(self, schema):
        return Reader()

class Reader(DataSourceReader):
    def partitions(self):
        return [InputPartition(0), InputPartition(1)]
    def read(self, partition):
        yield from ((number,) for number in range(100))

here = sys.argv[1]
spark = SparkSession.builder.master("local[2]").config("spark.sql.shuffle.partitions", "2").getOrCreate()
spark.dataSource.register(Numbers)
spark.read.format("Numbers").load().groupBy("n").count().write.parquet(here + "/rows")
spark.read.parquet(here + "/rows").orderBy("n").collect()
times = spark.readStream.format("rate").load().withWatermark("timestamp", "1 second")
counts = times.groupBy(f.window("timestamp", "1 second")).count().writeStream.format("parquet").option("path", here + "/counts")
counts.option("checkpointLocation", here + "/checkpoint").trigger(availableNow=True).start().awaitTermination()
spark.stop()
"""


def options() -> str:
    """Return the options for the JVMs of Spark."""
    return f"{SHORT} -XX:SharedArchiveFile={FILE} -Xshare:auto -Xlog:disable" if FILE.exists() else SHORT


def main() -> int:
    """Make the archive. Return 0 also on failure, because then the tests are only slower."""
    target = Path(sys.argv[1]).absolute()
    with tempfile.TemporaryDirectory() as scratch:
        kept = Path(scratch, "classes.jsa")
        environment = {**os.environ, "SPARK_SUBMIT_OPTS": f"{SHORT} -XX:ArchiveClassesAtExit={kept}", "SPARK_LOCAL_IP": "127.0.0.1"}
        job = Path(scratch, "job.py")
        job.write_text(_JOB)
        ran = subprocess.run(
            [sys.executable, job, scratch], env=environment, cwd=scratch, capture_output=True, timeout=_RUN_S_MAX, check=False
        )
        if ran.returncode or not kept.exists():
            print(
                f"classes: no archive, so the tests of Spark start slowly: {ran.stderr.decode(errors='replace')[-300:]}",
                file=sys.stderr,
            )
            return 0
        part = target.with_suffix(".part")
        part.write_bytes(kept.read_bytes())
        part.replace(target)
    print(f"classes: {target.stat().st_size // 1_000_000} MB archived for the JVMs of the tests")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
