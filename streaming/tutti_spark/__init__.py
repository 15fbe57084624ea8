"""The Spark data source `tutti`, and jobs that read through it. NOTES.md explains the design."""
