"""ZeroMQ connectors: messages to the log, and records of the log to subscribers. NOTES.md describes possible losses."""
