"""Files of a directory into the committed log, each row once. Theory of operation and failure cases: NOTES.md."""
