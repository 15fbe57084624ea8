"""The reads process: the committed log over Arrow Flight, and the admin pages over HTTP (see NOTES.md and docs/reads.md)."""
