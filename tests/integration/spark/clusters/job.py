"""The user's job: a batch with a user function, and a stream into files up to the current end, each run by other processes of
Spark. With REGISTER it registers the format first. With HOLD it blocks a task at the record of that offset until the test releases
it.
"""

import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import udf

url, shared, *told = sys.argv[1:]
spark = SparkSession.builder.getOrCreate()
if "REGISTER" in told:
    import pyspark_tutti

    pyspark_tutti.register(spark)
options = {"gateways": url, "topics": "t", "minPartitions": "4", "shortCircuit": "false"}


def workers(_: object) -> Iterator[tuple[str, str, str]]:
    """Where a task runs: directory, interpreter, package."""
    import tutti_spark

    time.sleep(0.2)
    yield os.getcwd(), sys.executable, str(tutti_spark.__file__)


@udf("long")
def held(offset: int) -> int:
    """Return the offset; for the record of HOLD only after the release."""
    at = next((int(word.removeprefix("HOLD=")) for word in told if word.startswith("HOLD=")), -1)
    if offset == at:
        Path(shared, "held").write_text(os.getcwd())
        until = time.monotonic() + 100
        while not Path(shared, "let-go").exists() and time.monotonic() < until:
            time.sleep(0.02)
    return offset


def once(rows: DataFrame) -> str:
    """How many records there are, where they are the log's first ones, each once."""
    offsets = sorted(row["offset"] for row in rows.select("offset").collect())
    return str(len(offsets)) if offsets == list(range(len(offsets))) else f"not each once: {offsets}"


if "STREAM" not in told:
    rows = spark.read.format("tutti").options(**options).load()
    print("BATCH", once(rows))
    print("WHERE", *{"|".join(place) for place in spark.sparkContext.parallelize(range(8), 8).flatMap(workers).collect()})
stream = spark.readStream.format("tutti").options(**options, startingOffset="earliest", maxRecordsPerTrigger="2000").load()
query = (
    stream.select(held("offset").alias("offset"), "value")
    .writeStream.format("parquet")
    .option("path", f"{shared}/rows")
    .option("checkpointLocation", f"{shared}/checkpoint")
    .trigger(availableNow=True)
    .start()
)
query.awaitTermination()
result = spark.read.parquet(f"{shared}/rows")
print("STREAM", once(result))
print("BATCHES", len(query.recentProgress))
spark.stop()
