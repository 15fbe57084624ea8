"""Kafka's topics into the committed log, each record once. Theory of operation and failure cases: NOTES.md."""
