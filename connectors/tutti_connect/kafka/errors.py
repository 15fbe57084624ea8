"""Errors of writing to Kafka; the class of an error decides how the connector reacts."""

from __future__ import annotations

from tutti.errors import TuttiError, Unavailable


class RetryTransaction(Unavailable):
    """Kafka is unreachable or has aborted the transaction: open the producer again, and read from Kafka what is committed."""


class RecordRejected(TuttiError):
    """Kafka has aborted the transaction because of one record, without identifying it: halve the transaction to find the record."""


class TopicRejected(RecordRejected):
    """Kafka rejects every record of a topic, so the connector must end. The message gives the reason, for an operator."""
