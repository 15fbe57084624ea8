"""Position of kafka-out, committed to Kafka in the same transaction as the records."""

from __future__ import annotations

import msgspec

from tutti.errors import ConfigError, FormatError


class Position(msgspec.Struct, frozen=True):
    """Offset up to which Kafka has the log, and the instance that has committed it.

    Attributes:
        log: uuid of the log, hex.
        next: offset below which every record is in Kafka or in quarantine, or belongs to a topic that is not copied.
        instance: random id of the instance that committed the position; an older instance that reads this id must end.
    """

    log: str
    next: int
    instance: str

    def encode(self) -> bytes:
        """Return the position as the value of a message."""
        return _ENCODER.encode(self)


_ENCODER = msgspec.json.Encoder()
_DECODER = msgspec.json.Decoder(Position)


def decode_position(value: bytes, topic: str) -> Position:
    """Decode the position in a message of `topic`.

    Raises:
        FormatError: another program wrote the message.
    """
    try:
        return _DECODER.decode(value)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise FormatError(
            f"Kafka's topic {topic} has {value[:60]!r}, which is not a position of this connector ({error}): "
            f"set kafka.position_topic to a topic that no other program uses"
        ) from error


def check_same_log(position: Position, log: str, name: str, topic: str) -> None:
    """Check that a position belongs to the log of the gateways.

    Raises:
        ConfigError: the position belongs to a different log.
    """
    if position.log != log:
        raise ConfigError(
            f"connector {name!r} has copied log {position.log} to Kafka up to offset {position.next} (its position is in topic "
            f"{topic}), but the gateways have log {log}: to copy this log too, give the connector another `name`"
        )
