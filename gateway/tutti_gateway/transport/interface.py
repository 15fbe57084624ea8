"""Interface of a transport between gateways. One thread makes all calls, and no call blocks.

A transport may lose, duplicate and reorder messages, and reports broken connections. A transport never alters a message, never
delivers a message of another group or protocol, and never queues without a limit. The transport counts lost messages, and the
layers above recover from the loss (docs/explanation/protocol/transport.md).
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
        log: uuid of the log, empty for a blank directory.
        process: 8 random bytes of this run; two concurrent values with one incarnation mean that a directory was copied.
        address: HOST:P for clients, as in a roster.
        configured: members in the configuration, name -> address, which the peer compares to report differences.
        timers: settings of `[timers]` and the preset, which the peer compares to report differences; empty from older releases.
        seal: 32 random bytes, the key that authenticates multicast datagrams; empty on an unencrypted connection.
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
    # msgspec copies an empty default for each instance, so an empty dict is a safe default.
    configured: dict[str, str] = {}
    timers: dict[str, str] = {}
    seal: bytes = b""


class Trouble(NamedTuple):
    """A problem for the operator.

    `peer` is the gateway or address concerned, empty for this gateway's own port. `reason` has the cause and the remedy.
    """

    peer: str
    reason: str


class Transport(Protocol):
    """Carries messages to and from the other gateways."""

    def introduce(self, number: int, log: bytes) -> None:
        """Set this gateway's number and log for all later introductions."""

    def set_peers(self, peers: Sequence[tuple[int, str, str]]) -> None:
        """Set the gateways to connect to, each with number, name and client address HOST:P. The list replaces the previous one."""

    def send(self, to: int, message: Message) -> None:
        """Queue a message for the gateway with number `to`. The next `flush` sends the message, or the message is lost.

        Pass the same object for all receivers of a message, so that the transport encodes the message once.
        """

    def flush(self) -> None:
        """Send the queued messages."""

    def drain(self, messages_max: int, bytes_max: int, ready: Container[int] | None = None) -> list[Received | LinkChanged]:
        """Return received messages and link changes; those of one sender are in order.

        Stop at `messages_max` messages or `bytes_max` bytes. Check only the descriptors in `ready`, or all if `ready` is None.
        """

    @property
    def unread(self) -> bool:
        """True if received messages or link changes wait for `drain` that none of the `descriptors` signals."""

    def descriptors(self) -> Sequence[int]:
        """Return the descriptors that become readable when messages or link changes wait for `drain`, always the same ones."""

    def next_us(self) -> int | None:
        """Return the microseconds until `flush` must run even if no message arrives, or None if nothing is due."""

    def maintain(self) -> list[Trouble]:
        """Refresh keys, send heartbeats and renew connections. Return the problems since the last call. Called once a second."""

    def release_memory(self) -> None:
        """Drop received messages and close every accepted connection, because memory is low.

        The other gateways reconnect, and the layers above recover the lost messages.
        """

    def facts(self) -> dict[str, object]:
        """Return counters for the status: messages sent, received and lost, by peer."""

    def close(self) -> None:
        """Stop. Allow a short time for sending queued messages."""
