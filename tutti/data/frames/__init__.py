"""Frames and their bodies, and the schemas and columns of records."""
