"""Bodies of all frames except batches: msgpack of small frozen structs (design, sections 3 to 5).

Decoding is strict: bytes that are not exactly one struct of the expected type raise `FormatError`.
"""

from __future__ import annotations

from typing import TypeVar

import msgspec

from tutti.errors import FormatError


class Voter(msgspec.Struct, frozen=True, array_like=True):
    """One gateway of the roster: number, name, incarnation of its disk (16 bytes) and address (HOST:P).

    An added gateway that has not caught up yet is a learner, which does not vote and whose incarnation may still change.
    """

    number: int
    name: str
    incarnation: bytes
    address: str
    voting: bool = True


class ViewBody(msgspec.Struct, frozen=True, array_like=True):
    """VIEW: the members (gateway numbers, oldest first) that decide the frames from this position on."""

    members: tuple[int, ...]


class LaneViewBody(msgspec.Struct, frozen=True, array_like=True):
    """VIEW in a lane: the members of the attempt (gateway numbers, oldest first) and their disks.

    Attributes:
        disks: incarnation of each member's disk, in the order of `members`; empty if unknown. A gateway can have several disks over
            time, and only the disk that voted has the frames. Older releases omit this field.
    """

    members: tuple[int, ...]
    disks: tuple[bytes, ...] = ()

    @property
    def by_number(self) -> dict[int, bytes]:
        """The incarnation of each member's disk, by the member's gateway number; empty bytes if unknown."""
        disks = self.disks if len(self.disks) == len(self.members) else (b"",) * len(self.members)
        return dict(zip(self.members, disks, strict=True))


class RosterBody(msgspec.Struct, frozen=True, array_like=True):
    """ROSTER: the gateways of the roster in the order of their numbers, the group's name and the log's uuid (16 bytes).

    `forced` is true if an operator reduced the roster after the permanent loss of a majority. From this position on, only the
    voters of this roster form majorities.
    """

    group: str
    log: bytes
    voters: tuple[Voter, ...]
    forced: bool = False


class EpochBody(msgspec.Struct, frozen=True, array_like=True):
    """EPOCH: opens the epoch that the header contains for a producer's instance (16 bytes).

    `sequence` is the sequence of the producer's last committed record, and `progress` is its last committed progress.
    """

    name: str
    instance: bytes
    sequence: int
    progress: bytes


class TopicBody(msgspec.Struct, frozen=True, array_like=True):
    """TOPIC: registers a name for the topic number in the header."""

    name: str


class ForgetBody(msgspec.Struct, frozen=True, array_like=True):
    """FORGET: removes producers (by number) from the received-table.

    If a removed producer returns, its first epoch must be above `floor`, so that its old batches cannot be accepted again.
    """

    producers: tuple[int, ...]
    floor: int


class Entry(msgspec.Struct, frozen=True, array_like=True):
    """A producer's entry in the received-table: instance, epoch, highest sequence, progress, and True if its epoch is closed."""

    instance: bytes
    epoch: int
    sequence: int
    progress: bytes
    closed: bool = False


class AbortBody(msgspec.Struct, frozen=True, array_like=True):
    """ABORT: voids every batch of the header's (producer, epoch) from `position` up to the ABORT itself.

    The ABORT restores the producer's entry before `position`, which is `entry`, and closes the producer's epoch.
    """

    position: int
    reason: str
    entry: Entry


class TickBody(msgspec.Struct, frozen=True, array_like=True):
    """TICK: a numbered time mark (us, UTC). All readers see a tick at the same position, so a micro-batch can end there."""

    number: int
    time_us: int


class TrimBody(msgspec.Struct, frozen=True, array_like=True):
    """TRIM: moves the start of the log to `position`. Records below `offset`, the new first offset, can be removed."""

    position: int
    offset: int


class OffsetsBody(msgspec.Struct, frozen=True, array_like=True):
    """OFFSETS: committed offsets of named readers."""

    readers: dict[str, int]


class TxnBody(msgspec.Struct, frozen=True, array_like=True):
    """TXN: makes the records of the staged batches at these positions visible together, in this order, at the TXN's position.

    `counts` has the record count of each batch. The header has the sum of the counts, the topic of the first batch, the range of
    all timestamps, and the producer.
    """

    staged: tuple[int, ...]
    counts: tuple[int, ...]

    def good(self, batches_max: int) -> bool:
        """True if the TXN contains 1 to `batches_max` different batches, and the same number of record counts."""
        return 0 < len(set(self.staged)) == len(self.staged) == len(self.counts) <= batches_max


Body = TypeVar(
    "Body",
    ViewBody,
    LaneViewBody,
    RosterBody,
    EpochBody,
    TopicBody,
    ForgetBody,
    AbortBody,
    TickBody,
    TrimBody,
    OffsetsBody,
    TxnBody,
)

_ENCODER = msgspec.msgpack.Encoder(order="deterministic")
_DECODERS: dict[type, msgspec.msgpack.Decoder[object]] = {kind: msgspec.msgpack.Decoder(kind) for kind in Body.__constraints__}


def encode_body(body: msgspec.Struct) -> bytes:
    """Encode a body. Equal bodies give equal bytes on every gateway, so that their CRCs are equal, too."""
    return _ENCODER.encode(body)


def decode_body(kind: type[Body], data: bytes | bytearray | memoryview) -> Body:
    """Decode a body of type `kind`.

    Raises:
        FormatError: the bytes are not a body of this type.
    """
    try:
        body = _DECODERS[kind].decode(data)
    except (msgspec.DecodeError, msgspec.ValidationError, UnicodeDecodeError, RecursionError) as error:
        raise FormatError(f"the body of a frame is not a valid {kind.__name__}: {error}") from error
    if not isinstance(body, kind):  # pragma: no cover - the decoder is typed
        raise FormatError(f"the body of a frame is a {type(body).__name__}, not a {kind.__name__}")
    return body
