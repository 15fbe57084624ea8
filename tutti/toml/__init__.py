"""Loads TOML configurations and reports each mistake with its line."""
