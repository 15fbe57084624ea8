"""Spool: a producer's uncommitted records on its own disk (NOTES.md)."""
