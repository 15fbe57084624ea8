"""Jobs for spark-submit: each gives the same rows live and replayed. docs/how-to/spark.md lists their arguments."""
