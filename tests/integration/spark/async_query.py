"""A query with asynchronous progress tracking, as a process to be killed: async_query.py URL TOPIC ROOT. The values of a batch are
the lines of ROOT/batches/N. In its first run the query blocks in a batch whose end Spark has stored after one that it has not
stored, and writes the number of that batch to ROOT/gap.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession

from tutti_spark.launch import LOCAL_SETTINGS

KEPT_MS = 10_000  # Spark keeps an end when so much time has passed since the last one
_SEEN_S = 1.0  # Spark keeps it beside the batch


def run(url: str, topic: str, root: Path) -> None:
    """Read the topic, ten records a batch, until the process is killed."""
    batches, gap, offsets = root / "batches", root / "gap", root / "checkpoint" / "offsets"
    batches.mkdir(exist_ok=True)
    first_run = not gap.exists()

    def kept(batch: int, seconds: float) -> bool:
        deadline = time.monotonic() + seconds
        while not (offsets / str(batch)).exists():
            if time.monotonic() > deadline:
                return False
            time.sleep(0.01)
        return True

    def take(rows: DataFrame, batch: int) -> None:
        values = [bytes(row.value).decode() for row in rows.select("value").collect()]
        partial = root / f"partial-{batch}"
        partial.write_text("\n".join(values))
        partial.rename(batches / str(batch))
        if not first_run:
            return
        if not kept(batch, _SEEN_S):
            time.sleep(KEPT_MS / 1000)  # then Spark keeps the next one
        elif batch and not kept(batch - 1, 0):
            gap.write_text(str(batch))
            time.sleep(1 << 20)

    builder = SparkSession.builder.master("local[2]")
    for name, value in LOCAL_SETTINGS.items():
        builder = builder.config(name, value)
    stream = builder.getOrCreate().readStream.format("tutti").option("gateways", url).option("topics", topic)
    writer = stream.option("startingOffset", "earliest").option("maxRecordsPerTrigger", 10).load().writeStream.foreachBatch(take)
    asynchronous = {
        "asyncProgressTrackingEnabled": "true",
        "asyncProgressTrackingCheckpointIntervalMs": str(KEPT_MS),
        "_asyncProgressTrackingOverrideSinkSupportCheck": "true",  # it is Kafka's sink, the console's and noop without
        "checkpointLocation": str(root / "checkpoint"),
    }
    writer.options(**asynchronous).start().awaitTermination()


if __name__ == "__main__":
    run(sys.argv[1], sys.argv[2], Path(sys.argv[3]))
