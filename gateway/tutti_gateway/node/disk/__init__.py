"""The disk threads: one for the ordered log, one for the lanes."""
