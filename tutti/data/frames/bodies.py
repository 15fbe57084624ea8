"""Bodies of the frames that are not batches: msgpack of small frozen structs (design, sections 3 to 5).

A body is decoded strictly: what does not have the form is a `FormatError`, so that a damaged or foreign frame cannot slip through.
"""

from __future__ import annotations

from typing import TypeVar

import msgspec

from tutti.errors import FormatError


class Voter(msgspec.Struct, frozen=True, array_like=True):
    """One gateway of the roster: its number, name, the incarnation of its disk (16 bytes) and its address (HOST:P). One that was
    added and has not caught up is named and does not vote: a learner, of any incarnation.
    """

    number: int
    name: str
    incarnation: bytes
    address: str
    voting: bool = True


class ViewBody(msgspec.Struct, frozen=True, array_like=True):
    """VIEW: the members (gateway numbers, oldest first) that decide from here on."""

    members: tuple[int, ...]


class AttemptBody(msgspec.Struct, frozen=True, array_like=True):
    """VIEW in a lane: the members of the attempt (gateway numbers, oldest first) and their disks.

    Attributes:
        disks: the incarnation of each member's disk, in the order of `members`, empty where it is not known. A number names one
            disk after another, and only the disk that voted holds the frames. A release that knew no disks left the field out.
    """

    members: tuple[int, ...]
    disks: tuple[bytes, ...] = ()

    @property
    def by_number(self) -> dict[int, bytes]:
        """The disk of each member, empty where it is not known."""
        disks = self.disks if len(self.disks) == len(self.members) else (b"",) * len(self.members)
        return dict(zip(self.members, disks, strict=True))


class RosterBody(msgspec.Struct, frozen=True, array_like=True):
    """ROSTER: the voting gateways in the order of their numbers, the group's name and the log's uuid (16 bytes).

    `forced`: an operator named who remains when a majority was gone for good. From here on nobody before it counts.
    """

    group: str
    log: bytes
    voters: tuple[Voter, ...]
    forced: bool = False


class EpochBody(msgspec.Struct, frozen=True, array_like=True):
    """EPOCH: a producer's instance (16 bytes) begins the epoch named in the header, going on after `sequence` with `progress`."""

    name: str
    instance: bytes
    sequence: int
    progress: bytes


class TopicBody(msgspec.Struct, frozen=True, array_like=True):
    """TOPIC: the name that the header's topic number stands for from here on."""

    name: str


class ForgetBody(msgspec.Struct, frozen=True, array_like=True):
    """FORGET: producers (numbers) that leave the received-table; every later first epoch must exceed `floor`."""

    producers: tuple[int, ...]
    floor: int


class Entry(msgspec.Struct, frozen=True, array_like=True):
    """A producer's line of the received-table: instance, epoch, highest sequence, progress, and whether its epoch is closed."""

    instance: bytes
    epoch: int
    sequence: int
    progress: bytes
    closed: bool = False


class AbortBody(msgspec.Struct, frozen=True, array_like=True):
    """ABORT: from `position` on (up to the ABORT itself) every batch of the header's (producer, epoch) is void.

    `entry` is the producer's line as it was before `position`; it is put back, closed.
    """

    position: int
    reason: str
    entry: Entry


class TickBody(msgspec.Struct, frozen=True, array_like=True):
    """TICK: number and time (us, UTC); a deterministic place where a micro-batch may be cut."""

    number: int
    time_us: int


class TrimBody(msgspec.Struct, frozen=True, array_like=True):
    """TRIM: the log begins with `position` from here on, whose first record has the offset `offset`; what lies below may go."""

    position: int
    offset: int


class OffsetsBody(msgspec.Struct, frozen=True, array_like=True):
    """OFFSETS: offset commits of named readers."""

    readers: dict[str, int]


class TxnBody(msgspec.Struct, frozen=True, array_like=True):
    """TXN: the records of the staged batches at these positions, in this order, become visible together, where the TXN stands.

    `counts` are their records. The header has the sum, the topic of the first one, the range of all timestamps, and the producer
    whose they are then.
    """

    staged: tuple[int, ...]
    counts: tuple[int, ...]

    def good(self, batches_max: int) -> bool:
        """Whether it names 1 to so many batches, each once and with its records."""
        return 0 < len(set(self.staged)) == len(self.staged) == len(self.counts) <= batches_max


Body = TypeVar(
    "Body", ViewBody, AttemptBody, RosterBody, EpochBody, TopicBody, ForgetBody, AbortBody, TickBody, TrimBody, OffsetsBody, TxnBody
)

_ENCODER = msgspec.msgpack.Encoder(order="deterministic")
_DECODERS: dict[type, msgspec.msgpack.Decoder[object]] = {
    kind: msgspec.msgpack.Decoder(kind)
    for kind in (
        ViewBody,
        AttemptBody,
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
}


def encode_body(body: msgspec.Struct) -> bytes:
    """The bytes of a body; equal bodies have equal bytes on every gateway."""
    return _ENCODER.encode(body)


def decode_body(kind: type[Body], data: bytes | bytearray | memoryview) -> Body:
    """The body of type `kind` in `data`.

    Raises:
        FormatError: the bytes do not have that form.
    """
    try:
        body = _DECODERS[kind].decode(data)
    except (msgspec.DecodeError, msgspec.ValidationError, UnicodeDecodeError, RecursionError) as error:
        raise FormatError(f"the body of a frame is no {kind.__name__}: {error}") from error
    if not isinstance(body, kind):  # pragma: no cover - the decoder is typed
        raise FormatError(f"the body of a frame is a {type(body).__name__}, not a {kind.__name__}")
    return body
