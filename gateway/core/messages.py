"""What members say to each other. Every message names its view; one of another view is ignored (design, sections 4 and 5).

Messages carry frames by reference; the transport turns them into bytes (`gateway.core.record` does, for tests and recorded runs).
"""

from __future__ import annotations

import msgspec

from gateway.data.frame import Frame


class Forward(msgspec.Struct, frozen=True, tag=True):
    """Origin to coordinator: batches to be ordered, unplaced, in the order of their producers."""

    view: int
    frames: tuple[Frame, ...]


class AskEpoch(msgspec.Struct, frozen=True, tag=True):
    """Begin `epoch` of the producer `name` for `instance`."""

    name: str
    instance: bytes
    epoch: int


class AskTopic(msgspec.Struct, frozen=True, tag=True):
    """Register a topic."""

    name: str


class AskOffsets(msgspec.Struct, frozen=True, tag=True):
    """Log the offset commit of a named reader, unless the log holds one of that reader behind position `frontier`: the asker's own
    frontier, where it knew what the reader had committed and that this is not among it.
    """

    reader: str
    offset: int
    frontier: int


class AskForget(msgspec.Struct, frozen=True, tag=True):
    """Take producers (numbers, which nobody else ever gets) out of the received-table."""

    producers: tuple[int, ...]


Ask = AskEpoch | AskTopic | AskOffsets | AskForget


class Asking(msgspec.Struct, frozen=True, tag=True):
    """Origin to coordinator: order the frame that answers this, unless the log has it."""

    view: int
    ask: Ask


class Order(msgspec.Struct, frozen=True, tag=True):
    """Coordinator to members: placed frames, positions dense and increasing."""

    view: int
    frames: tuple[Frame, ...]


class Echo(msgspec.Struct, frozen=True, tag=True):
    """Coordinator to the origin of a run: packed headers (96 bytes each) of its own frames, which it has in its forward-table."""

    view: int
    headers: bytes


class Resend(msgspec.Struct, frozen=True, tag=True):
    """Coordinator to origin: batches of the producer were not taken; send again from `sequence`, the next one that will be."""

    view: int
    producer: int
    epoch: int
    sequence: int


class Refuse(msgspec.Struct, frozen=True, tag=True):
    """Coordinator to origin: a batch was not taken, and why."""

    view: int
    producer: int
    epoch: int
    first_sequence: int
    code: str
    reason: str
    retry: bool


class Deny(msgspec.Struct, frozen=True, tag=True):
    """Coordinator to origin: what was asked cannot be done, and why."""

    view: int
    ask: Ask
    code: str
    reason: str
    retry: bool


class Vote(msgspec.Struct, frozen=True, tag=True):
    """Member to coordinator, YES: everything up to the position is durable here. Cumulative. `low` says why the disk takes nothing
    new, empty if it does.
    """

    view: int
    up_to: int
    low: str = ""


class No(msgspec.Struct, frozen=True, tag=True):
    """Member to coordinator, NO: the batch at the position is not taken here."""

    view: int
    position: int
    reason: str


class Confirm(msgspec.Struct, frozen=True, tag=True):
    """Coordinator to members: all of them voted YES up to the position, it is decided. Cumulative and repeated: none is cached."""

    view: int
    up_to: int


Message = Forward | Asking | Order | Echo | Resend | Refuse | Deny | Vote | No | Confirm
