"""The log on disk, which one gateway writes and any process on the same host can read (design, sections 3 and 6)."""
