"""Cursors over sources of records, and the text forms of records and positions."""
