"""Connectors that move records between the committed log and other systems. Each has its own package."""
