"""Interface of a transport between gateways. One thread makes all calls, and none of them blocks.

A transport may lose, duplicate and reorder messages. It reports broken connections. It never alters a message, never delivers a
message of another group or protocol, and never queues without a limit. It counts lost messages; the layers above recover them
(docs/explanation/protocol/transport.md).
"""

from __future__ import annotations

from collections.abc import Container, Sequence
from typing import NamedTuple, Protocol

import msgspec

from tutti_gateway.core.protocol.events import LinkChanged, Received
from tutti_gateway.core.protocol.messages import Message

PROTOCOL = 1  # version of the messages between gateways; both sides must use the same version


class Introduction(msgspec.Struct, frozen=True, kw_only=True):
    """First message of each connection: a gateway's statement about itself.

    Attributes:
        protocol: version of the messages between gateways.
        release: version of the software, for messages to operators.
        group, gateway: names.
        incarnation: id of the data directory.
        number: number in the log, or in the configuration before the gateway has a log; 0 for none.
        log: uuid of the log; empty for a blank directory.
        process: 8 random bytes of this run. Two different values with the same incarnation mean that a directory was copied.
        address: HOST:P for clients, as in a roster.
        configured: configured members, name -> address, to report differences.
        timers: settings of `[timers]` and the preset, to report differences. Older releases send none.
        seal: 32 random bytes that authenticate multicast datagrams. Sent only over an encrypted connection; otherwise empty.
    """

    protocol: int = PROTOCOL
    release: str = ""
    group: str
    gateway: str
    incarnation: bytes
    number: int = 0
    log: bytes = b""
    process: bytes = b""
    address: str = ""
    configured: dict[str, str] = {}
    timers: dict[str, str] = {}
    seal: bytes = b""


class Trouble(NamedTuple):
    """A problem for the operator: the gateway or address concerned (empty for this gateway's port), the cause and the remedy."""

    peer: str
    reason: str


class Transport(Protocol):
    """Carries messages to and from the other gateways."""

    def introduce(self, number: int, log: bytes) -> None:
        """Set this gateway's number and log for all later introductions."""

    def set_peers(self, peers: Sequence[tuple[int, str, str]]) -> None:
        """Set the gateways to connect to, each with number, name and client address HOST:P. The list replaces the previous one."""

    def send(self, to: int, message: Message) -> None:
        """Queue a message for a gateway, by number. The next `flush` sends it, or it is lost.

        Pass the same object for all receivers of a message, so that it is encoded once.
        """

    def flush(self) -> None:
        """Send the queued messages."""

    def drain(self, messages_max: int, bytes_max: int, ready: Container[int] | None = None) -> list[Received | LinkChanged]:
        """Return received messages and link changes, in order for each sender.

        Stop at `messages_max` messages or `bytes_max` bytes. If `ready` is given, check only those of the `descriptors`.
        """

    @property
    def unread(self) -> bool:
        """True if there is something to drain that none of the `descriptors` signals."""

    def descriptors(self) -> Sequence[int]:
        """Return the descriptors that become readable when there is something to drain. They never change."""

    def next_us(self) -> int | None:
        """Return the time until `flush` must run even if no message arrives, us; None if it need not run."""

    def maintain(self) -> list[Trouble]:
        """Maintain keys and connections. Return the problems since the last call, for the log. Called about once a second."""

    def release_memory(self) -> None:
        """Drop received messages and close every accepted connection, because memory is low.

        The other gateways reconnect, and the layers above recover the lost messages.
        """

    def facts(self) -> dict[str, object]:
        """Return counters for the status: messages sent, received and lost, by peer."""

    def close(self) -> None:
        """Stop. Allow a short time for sending queued messages."""
