"""Reads: pages of records, and streams."""
