"""Background maintenance of the log: retention, scrubbing and quarantine."""
