"""Commands for keys and tokens."""
