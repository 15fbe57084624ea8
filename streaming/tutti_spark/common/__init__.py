"""Options, schema, credentials and requirements that the source, the sink and the backfill share."""
