"""zeromq-in: one thread reads messages from a ZeroMQ socket, while the buffer has space, and passes them to the log."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import zmq

from tutti_connect.quarantine import QuarantineLog, as_base64
from tutti_connect.zeromq import limits
from tutti_connect.zeromq.batches import Message, MessageConverter, RejectedMessage, TopicBatch
from tutti_connect.zeromq.memory_flow import Flow
from tutti_connect.zeromq.sockets import Socket, open_socket
from tutti_connect.zeromq.spooled_flow import SpooledFlow

if TYPE_CHECKING:
    from tutti_connect.zeromq.config import SourceConfig

LOG = logging.getLogger("tutti.zeromq")


class SourceConnector:
    """Copies messages to the log. One thread calls `run`; other threads may read the counters.

    Attributes:
        messages, bytes: number and size of the messages that this instance has read from the socket.
        dropped: number of messages that this instance has dropped because the buffer was full ("sub" only).
        flow: buffer of the received messages, and producer that sends them to the log.
    """

    def __init__(self, config: SourceConfig) -> None:
        """Prepare without connecting.

        Raises:
            ConfigError: the quarantine directory is not writable.
        """
        self.config = config
        self.quarantine = QuarantineLog(config.quarantine, config.name)
        self.flow: Flow | SpooledFlow = (SpooledFlow if config.spool else Flow)(config, self._reject_topic)
        self.messages = self.bytes = self.dropped = 0
        self.ready_fields: dict[str, object] = {}
        self._converter = MessageConverter(config.zeromq.frames, config.topic)
        self._dropping = False

    def run(self, stop: threading.Event, ready: Callable[[], None]) -> None:
        """Run until `stop` is set, or until an error that a retry cannot resolve.

        Raises:
            ConfigError: an endpoint or a key is invalid.
            Unavailable: no gateway answers at the start.
            Fenced: another instance of the same name has taken over.
        """
        source = self.config.zeromq
        pull = source.socket == "pull"
        self.flow.open()
        drain_s = 0.0  # do not wait for outcomes after an error, because the flow cannot deliver more records
        try:
            kind = zmq.PULL if pull else zmq.SUB
            with open_socket(kind, source.bind, source.connect, self.config.curve, source.high_water_mark) as (socket, addresses):
                for prefix in source.subscribe or ([] if pull else [""]):
                    socket.set(zmq.SUBSCRIBE, prefix.encode())
                self.ready_fields["bound"] = addresses
                ready()
                while not stop.is_set():
                    self._run_once(socket, pull=pull)
                self._drain(socket)
            drain_s = limits.DELIVERY_S
        finally:
            undelivered = self.flow.close(drain_s)
            if undelivered:
                LOG.error("%s: %d received records are not known to be in the log", self.config.name, undelivered)

    def _run_once(self, socket: Socket, *, pull: bool) -> None:
        self.flow.run_once(time.monotonic())
        has_space = self.flow.has_space
        if pull and not has_space:
            self.flow.wait(limits.SOCKET_POLL_S)  # do not read the socket, so that ZeroMQ's buffers fill and slow the PUSH peers
            return
        if not socket.poll(int(limits.SOCKET_POLL_S * 1000)):
            return
        messages = self._receive(socket)
        if has_space:
            self._process(messages)
            self._dropping = False
            return
        self.dropped += len(messages)
        if not self._dropping:
            LOG.warning("%s: the buffer is full: messages are dropped and counted", self.config.name)
        self._dropping = True

    def _receive(self, socket: Socket) -> list[Message]:
        """Read the messages that ZeroMQ has buffered, at most one batch."""
        messages: list[Message] = []
        size = 0
        while len(messages) < limits.MESSAGES_A_BATCH and size < limits.BYTES_A_BATCH:
            try:
                message = socket.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                break
            messages.append(message)
            size += sum(map(len, message))
        self.messages += len(messages)
        self.bytes += size
        return messages

    def _process(self, messages: list[Message]) -> None:
        parts, rejected = self._converter.to_batches(messages)
        self._quarantine(rejected)
        self.flow.add(parts)
        self.flow.run_once(time.monotonic())

    def _quarantine(self, rejected: list[RejectedMessage]) -> None:
        """Quarantine rejected messages with one write, because any peer can send many of them."""
        if rejected:
            self.quarantine.append([(one.reason, _shown(one.message)) for one in rejected])

    def _reject_topic(self, topic: str, reason: str, parts: Sequence[TopicBatch]) -> None:
        """Quarantine the buffered records of a rejected topic, and reject its further messages; other topics continue."""
        LOG.warning(
            "%s: messages to topic %s go to quarantine: %s. When the log accepts the topic, restart the connector",
            self.config.name, topic, reason,
        )  # fmt: skip
        self._converter.reject_topic(topic, reason)
        for part in parts:
            self._quarantine([RejectedMessage(message, reason) for message in self._converter.original_messages(part)])

    def _drain(self, socket: Socket) -> None:
        """Process the messages that ZeroMQ has buffered, for at most `limits.DRAIN_S` from this call."""
        deadline = time.monotonic() + limits.DRAIN_S
        while time.monotonic() < deadline and self.flow.has_space and socket.poll(int(limits.SOCKET_POLL_S * 1000)):
            self._process(self._receive(socket))


def _shown(message: Message) -> dict[str, Any]:
    """Return a message in the form for quarantine: its number of frames, and the first bytes of its first frames."""
    frames = [
        {"bytes": len(frame), "base64": as_base64(frame[: limits.KEPT_BYTES_MAX])} for frame in message[: limits.KEPT_FRAMES_MAX]
    ]
    return {"frames": frames, "count": len(message)}
