"""The log on disk: written by one gateway, read by any process of the machine (design, sections 3 and 6; rules in NOTES.md)."""
