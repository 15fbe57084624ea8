"""Jobs for spark-submit. Each job computes the same rows in a live run and in a replay. docs/how-to/spark.md lists the
arguments.
"""
