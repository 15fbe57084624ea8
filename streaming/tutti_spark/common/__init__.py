"""Modules that the source, the sink and the backfill share: options, schema, credentials, requirements and locks."""
