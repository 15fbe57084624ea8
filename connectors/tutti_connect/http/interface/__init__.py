"""Interface."""
