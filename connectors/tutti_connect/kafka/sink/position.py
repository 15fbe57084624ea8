"""Where the way out has got to: what stands in Kafka beside the records, committed in one transaction with them."""

from __future__ import annotations

import msgspec

from tutti.errors import ConfigError, FormatError


class Position(msgspec.Struct, frozen=True):
    """Up to where Kafka has the log, and who wrote it.

    Attributes:
        log: uuid of the log, hex.
        next: the first offset that is not in Kafka; all below it are, or in quarantine, or of no topic that was asked for.
        instance: of the connector, a random one: who finds another's in place of its own was taken over from.
    """

    log: str
    next: int
    instance: str

    def encode(self) -> bytes:
        """As the value of a message."""
        return _ENCODER.encode(self)


_ENCODER = msgspec.json.Encoder()
_DECODER = msgspec.json.Decoder(Position)


def decode_position(value: bytes, topic: str) -> Position:
    """The position in a message of `topic`.

    Raises:
        FormatError: somebody else wrote there.
    """
    try:
        return _DECODER.decode(value)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise FormatError(
            f"Kafka's topic {topic} has {value[:60]!r}, which is no position of this connector ({error}): name a topic of its own, "
            f"kafka.position_topic"
        ) from error


def check_same_log(position: Position, log: str, name: str, topic: str) -> None:
    """Refuse to go on in another log at an offset of the first one.

    Raises:
        ConfigError: it is another one.
    """
    if position.log != log:
        raise ConfigError(
            f"Kafka has the records of log {position.log} up to {position.next} by connector {name!r}, and the gateways have log "
            f"{log}: to bring out this one, too, give the connector another `name` (its position is in Kafka's topic {topic})"
        )
