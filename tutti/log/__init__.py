"""The log on disk: written by one gateway, read by any process on the same host (design, sections 3 and 6)."""
