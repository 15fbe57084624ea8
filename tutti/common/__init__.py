"""Helpers that several packages use: addresses, credentials, durations, JSON fields, fork handlers."""
