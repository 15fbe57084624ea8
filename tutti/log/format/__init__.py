"""Formats of the log's files: frames, index, hard state, vote marks and snapshots."""
