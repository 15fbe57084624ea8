"""Logs of lanes: one log per origin of unordered records, with the same files as the ordered log."""
