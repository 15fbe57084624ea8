"""Connectors: what brings records from elsewhere into the committed log, and out of it. Each has a room of its own."""
