"""The archive: closed ranges of the log as Parquet files in a directory or an object store (NOTES.md)."""
