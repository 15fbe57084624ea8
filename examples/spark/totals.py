"""A Spark job that sums the ordered quantity of each item after every micro-batch. It counts each order once.

python -m tutti_spark.launch spark-submit examples/spark/totals.py DIRECTORY [--once]

The checkpoint is in DIRECTORY: a restarted job continues from it, even after a kill. With --once the job ends after the available
records.
$TUTTI_URL names the gateways; the default is that of `tutti dev`.
"""

from __future__ import annotations

import os
import signal
import sys
from typing import TYPE_CHECKING

from tutti.errors import install_remedy

try:
    from pyspark.errors import PySparkException
    from pyspark.sql import SparkSession
    from pyspark.sql import functions as f
except ModuleNotFoundError as error:
    raise SystemExit(f"this example needs {error.name}, which is not installed: {install_remedy('spark')}") from error

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

URL = os.environ.get("TUTTI_URL", "tutti://127.0.0.1:7400")


def show(totals: DataFrame, batch: int) -> None:
    """Print the totals; a real job would upsert them by item. Spark may repeat a batch, with the same rows."""
    for row in totals.orderBy("item").collect():
        print(f"batch {batch}: {row['item']} {row['total']}", flush=True)


def main(directory: str, once: bool) -> None:
    """Run until the query is stopped; with `once`, until the available records are counted."""
    spark = SparkSession.builder.appName("totals").config("spark.sql.shuffle.partitions", 2).getOrCreate()
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # Spark's own handler calls the JVM, which Ctrl-C also ends, and prints tracebacks
    records = (
        spark.readStream.format("tutti")
        .option("gateways", URL)
        .option("topics", "orders")
        .option("columns", "value")
        .option("startingOffset", "earliest")
        .option("queryName", "totals")  # `tutti queries` shows the position of the query under this name
        .load()
    )
    orders = records.select(f.from_json(f.col("value").cast("string"), "item string, quantity int").alias("o")).select("o.*")
    totals = orders.groupBy("item").agg(f.sum("quantity").alias("total"))
    writer = totals.writeStream.outputMode("complete").foreachBatch(show).option("checkpointLocation", f"{directory}/checkpoint")
    query = (writer.trigger(availableNow=True) if once else writer).start()
    query.awaitTermination()


if __name__ == "__main__":
    if len(sys.argv) not in (2, 3) or sys.argv[2:] not in ([], ["--once"]):
        sys.exit(__doc__)
    try:
        main(sys.argv[1], once="--once" in sys.argv)
    except PySparkException as error:  # its text has the traceback of Spark's Python process, then Tutti's error
        lines = [line for line in str(error).splitlines() if line.startswith("tutti.")]
        sys.exit(f"error: {lines[-1].partition(': ')[2] if lines else error}")
    except KeyboardInterrupt:
        sys.exit(130)
