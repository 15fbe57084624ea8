"""The reads process: serves the committed log over Arrow Flight and the admin pages over HTTP (docs/reference/reads.md)."""
