"""Jobs for spark-submit. Each gives the same rows for the same records, live or replayed. docs/spark.md tells their arguments."""
