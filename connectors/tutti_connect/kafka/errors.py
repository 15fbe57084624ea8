"""Errors of writing to Kafka, by the required reaction."""

from __future__ import annotations

from tutti.errors import TuttiError, Unavailable


class RetryTransaction(Unavailable):
    """A retry helps: Kafka is unreachable, or a transaction was abandoned. Kafka has the outcome of the last transaction."""


class RecordRejected(TuttiError):
    """Kafka rejects an unknown record of the transaction, which was aborted as a whole."""


class TopicRejected(RecordRejected):
    """Kafka rejects all records for a topic until the operator changes something. The message is the reason."""
