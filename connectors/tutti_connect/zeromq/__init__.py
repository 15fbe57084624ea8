"""ZeroMQ connectors: copy messages to the log, and publish records of the log to subscribers.

NOTES.md describes the delivery guarantees, and when messages can be lost.
"""
