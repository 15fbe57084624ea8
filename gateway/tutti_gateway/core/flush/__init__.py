"""*flush*: view changes that lose no decided frame (protocol/flush). See NOTES.md."""
