"""Kafka connectors: copy topics to the log and back, each record once.

NOTES.md has the theory of operation and the failure table.
"""
