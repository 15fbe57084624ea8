"""A range of the log into a table, each record once: `tutti backfill`."""
