"""Cursors over sources, and the text forms of records and positions."""
