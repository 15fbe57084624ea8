"""A client of Spark Connect, with what the page says in the first lines that it runs: batch, stream, and what is refused."""

import sys

lines, shared = sys.argv[1:]
first, second = lines.splitlines()
scope: dict[str, object] = {}
exec(f"from pyspark.sql import SparkSession\n{first}\nrows = {second}", scope)  # noqa: S102 - these are the page's lines
spark, rows = scope["spark"], scope["rows"]

from pyspark.sql.connect.dataframe import DataFrame  # noqa: E402
from pyspark.sql.connect.session import SparkSession  # noqa: E402

from gateway.errors import UsageError  # noqa: E402
from streaming.deterministic import deterministic  # noqa: E402

assert isinstance(spark, SparkSession)
assert isinstance(rows, DataFrame)
url = second.partition('"gateways", "')[2].partition('"')[0]


def once(offsets: list[int]) -> str:
    """How many, where they are the log's first ones, each once."""
    return str(len(offsets)) if sorted(offsets) == list(range(len(offsets))) else f"not each once: {sorted(offsets)}"


print("BATCH", once([row["offset"] for row in rows.select("offset").collect()]))
stream = spark.readStream.format("tutti").option("gateways", url).option("startingOffset", "earliest").load()
writer = stream.select("offset").writeStream.format("parquet").option("path", f"{shared}/rows")
query = writer.option("checkpointLocation", f"{shared}/checkpoint").trigger(availableNow=True).start()
query.awaitTermination()
print("STREAM", once([row["offset"] for row in spark.read.parquet(f"{shared}/rows").collect()]))
try:
    deterministic(rows)
except UsageError as error:
    print("REFUSED", error)
spark.stop()
