"""Jobs for spark-submit. Each gives the same rows for the same records, live or replayed. Arguments: docs/how-to/spark.md."""
