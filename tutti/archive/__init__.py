"""The archive: closed ranges of the log as Parquet, in a directory or an object store, and how they are read (NOTES.md)."""
