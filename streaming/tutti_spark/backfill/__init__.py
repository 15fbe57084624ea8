"""`tutti backfill`: copies a range of the log into a table, each record exactly once."""
