"""The requests and errors of the reads protocol."""
