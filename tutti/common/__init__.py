"""Common helpers: addresses, credentials, durations, JSON fields, fork."""
