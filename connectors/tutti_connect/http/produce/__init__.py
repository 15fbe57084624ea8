"""Posts: body parsing, exactly-once producers, receipts, spool."""
