"""Commands that send, read and copy records."""
