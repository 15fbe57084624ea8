"""Spark's side of Tutti: the data source `tutti`, and the jobs that read through it. NOTES.md tells how it works."""
