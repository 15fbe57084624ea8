"""The producer's spool: what is not yet committed, on the producer's own disk (NOTES.md)."""
