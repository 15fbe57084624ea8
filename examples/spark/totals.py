"""A Spark job: how much of each item was ordered, up to date after every micro-batch, each order counted once.

python -m tutti_spark.launch spark-submit examples/spark/totals.py DIRECTORY [--once]

Its checkpoint is in DIRECTORY: started again it goes on where it was, killed or not. With --once it ends with what is there now.
Gateways are those of $TUTTI_URL, or the one of `tutti dev`.
"""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

from pyspark.sql import SparkSession
from pyspark.sql import functions as f

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

URL = os.environ.get("TUTTI_URL", "tutti://127.0.0.1:7400")


def show(totals: DataFrame, batch: int) -> None:
    """What is done with the totals: an upsert by item would stand here. The same batch may come twice, with the same rows."""
    for row in totals.orderBy("item").collect():
        print(f"batch {batch}: {row['item']} {row['total']}", flush=True)


def main(directory: str, once: bool) -> None:
    """Run until it is stopped, or until all that is there is counted."""
    spark = SparkSession.builder.appName("totals").config("spark.sql.shuffle.partitions", 2).getOrCreate()
    records = (
        spark.readStream.format("tutti")
        .option("gateways", URL)
        .option("topics", "orders")
        .option("columns", "value")
        .option("startingOffset", "earliest")
        .option("queryName", "totals")  # so that `tutti queries` shows how far it is
        .load()
    )
    orders = records.select(f.from_json(f.col("value").cast("string"), "item string, quantity int").alias("it")).select("it.*")
    totals = orders.groupBy("item").agg(f.sum("quantity").alias("total"))
    writer = totals.writeStream.outputMode("complete").foreachBatch(show).option("checkpointLocation", f"{directory}/checkpoint")
    query = (writer.trigger(availableNow=True) if once else writer).start()
    query.awaitTermination()


if __name__ == "__main__":
    if len(sys.argv) not in (2, 3) or sys.argv[2:] not in ([], ["--once"]):
        sys.exit(__doc__)
    try:
        main(sys.argv[1], once="--once" in sys.argv)
    except KeyboardInterrupt:
        sys.exit(130)
