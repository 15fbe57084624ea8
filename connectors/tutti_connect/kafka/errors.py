"""What may come between a record and Kafka, by what is done about it."""

from __future__ import annotations

from tutti.errors import TuttiError, Unavailable


class Again(Unavailable):
    """Trying again mends it: Kafka is away, or a transaction was given up. What became of the last one is in Kafka."""


class NotTaken(TuttiError):
    """Kafka refuses a record of the transaction, which was taken back as a whole: it is not known which."""


class TopicNotTaken(NotTaken):
    """Kafka refuses a topic: no record can go there until the operator changes something. The message is the reason."""
