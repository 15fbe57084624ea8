"""ZeroMQ source: one thread reads messages from the socket while the buffer has free space."""

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
        messages, bytes: amounts that this instance has read from the socket.
        dropped: number of messages dropped because the buffer was full ("sub" only).
        flow: messages in flight to the log.
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
        drain_s = 0.0  # after an error, no more records can be delivered
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
            self.flow.wait(limits.SOCKET_POLL_S)  # ZeroMQ buffers the messages, and back pressure slows the PUSH peers
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
        """Read the available messages, within the limits of one batch."""
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
        """Quarantine rejected messages.

        Untrusted peers can send such messages, so the work is bounded: one write for each batch, which never blocks.
        """
        if rejected:
            self.quarantine.append([(one.reason, _shown(one.message)) for one in rejected])

    def _reject_topic(self, topic: str, reason: str, parts: Sequence[TopicBatch]) -> None:
        """Quarantine the records of a rejected topic; the other topics continue."""
        LOG.warning(
            "%s: messages to topic %s go to quarantine: %s. When the log accepts the topic, restart the connector",
            self.config.name, topic, reason,
        )  # fmt: skip
        self._converter.reject_topic(topic, reason)
        for part in parts:
            self._quarantine([RejectedMessage(message, reason) for message in self._converter.original_messages(part)])

    def _drain(self, socket: Socket) -> None:
        """Read the messages that ZeroMQ has buffered, within a time limit."""
        deadline = time.monotonic() + limits.DRAIN_S
        while time.monotonic() < deadline and self.flow.has_space and socket.poll(int(limits.SOCKET_POLL_S * 1000)):
            self._process(self._receive(socket))


def _shown(message: Message) -> dict[str, Any]:
    """Return the quarantined form of a message: its number of frames, and the first bytes of its first frames."""
    frames = [
        {"bytes": len(frame), "base64": as_base64(frame[: limits.KEPT_BYTES_MAX])} for frame in message[: limits.KEPT_FRAMES_MAX]
    ]
    return {"frames": frames, "count": len(message)}
