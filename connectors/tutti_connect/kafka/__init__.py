"""Kafka connectors: copy topics to the log and back, each record once.

NOTES.md describes the rules of both connectors and the effects of failures.
"""
