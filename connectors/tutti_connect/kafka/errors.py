"""Errors of writing to Kafka; each class stands for a required reaction."""

from __future__ import annotations

from tutti.errors import TuttiError, Unavailable


class RetryTransaction(Unavailable):
    """A retry can succeed, because Kafka is unreachable or a transaction was abandoned.

    Kafka has the outcome of the last transaction.
    """


class RecordRejected(TuttiError):
    """Kafka rejects a record of the transaction, but not known which. The whole transaction was aborted."""


class TopicRejected(RecordRejected):
    """Kafka rejects all records for a topic until the operator changes something. The message is the reason."""
