"""Jobs for spark-submit. Each job gives the same rows in a live run and in a replay. docs/how-to/spark.md lists their arguments."""
