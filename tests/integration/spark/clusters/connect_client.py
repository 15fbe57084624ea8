"""A client of Spark Connect that starts with the first lines of the page: a write in foreachBatch that runs twice, a batch, a
stream, and refused calls.
"""

import sys
from contextlib import suppress
from typing import Any

lines, shared = sys.argv[1:]
first, second, *function = lines.splitlines()
url = second.partition('"gateways", "')[2].partition('"')[0]
scope: dict[str, Any] = {"__name__": "__main__", "gateways": url}
text = "\n".join(["from pyspark.sql import SparkSession", first, f"rows = {second}", *function])
exec(text, scope)  # noqa: S102 - these are the page's lines
spark, rows, write = scope["spark"], scope["rows"], scope["write"]

from pyspark.errors import PySparkException  # noqa: E402
from pyspark.sql.connect.dataframe import DataFrame  # noqa: E402
from pyspark.sql.connect.session import SparkSession  # noqa: E402

from tutti.errors import UsageError  # noqa: E402
from tutti_spark.deterministic import deterministic  # noqa: E402

assert isinstance(spark, SparkSession)
assert isinstance(rows, DataFrame)


def once(offsets: list[int]) -> str:
    """How many, where they are the log's first ones, each once."""
    return str(len(offsets)) if sorted(offsets) == list(range(len(offsets))) else f"not each once: {sorted(offsets)}"


def copy(batch_rows: Any, batch: int) -> None:
    """Fail the first time, after the commit."""
    from pathlib import Path

    write(batch_rows.select("value"), batch)
    if not (failed := Path(shared, "failed")).exists():
        failed.touch()
        raise RuntimeError("the driver ends behind a commit")


stream = spark.readStream.format("tutti").option("gateways", url).option("startingOffset", "earliest").load()
before = rows.count()
copied = stream.where("topic != 'counts'").writeStream.foreachBatch(copy).option("checkpointLocation", f"{shared}/copies")
for _ in range(2):
    copying = copied.trigger(availableNow=True).start()
    with suppress(PySparkException):
        copying.awaitTermination()
rows = spark.read.format("tutti").option("gateways", url).load()  # the range of the first ends where the log did
print("COPIES", rows.where("topic = 'counts'").count() - before)
print("BATCH", once([row["offset"] for row in rows.select("offset").collect()]))
writer = stream.select("offset").writeStream.format("parquet").option("path", f"{shared}/rows")
query = writer.option("checkpointLocation", f"{shared}/checkpoint").trigger(availableNow=True).start()
query.awaitTermination()
print("STREAM", once([row["offset"] for row in spark.read.parquet(f"{shared}/rows").collect()]))
try:
    deterministic(rows)
except UsageError as error:
    print("REFUSED", error)
spark.stop()
