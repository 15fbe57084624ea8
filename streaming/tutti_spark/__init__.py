"""The Spark data source `tutti`, and Spark jobs that use it. NOTES.md explains the design."""
