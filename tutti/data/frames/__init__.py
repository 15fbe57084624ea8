"""Frames, and the bodies, schemas and columns of their records."""
