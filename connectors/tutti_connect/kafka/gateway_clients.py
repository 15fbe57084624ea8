"""Clients of the gateways: readers of the log for kafka-out, and producers for kafka-in."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from tutti.errors import ConfigError, Unavailable
from tutti.io.admin import AdminClient
from tutti.producer import Producer
from tutti.reader import Reader
from tutti.sources.flight import FlightSource
from tutti.sources.source import wait_for_log
from tutti.transactions import commit_progress
from tutti_connect.kafka import limits
from tutti_connect.kafka.sink.messages import COLUMNS


class CommittedLog:
    """Read access to the log of a group, or to some of its topics."""

    def __init__(self, url: str, topics: Sequence[str]) -> None:
        """Prepare without connecting. An empty `topics` means all topics."""
        self._url, self._topics = url, list(topics) or None
        self._reads = FlightSource(url)

    def span(self) -> tuple[str, int, int]:
        """Return the uuid, start offset and frontier of the log.

        Raises:
            Unavailable: no gateway answers, no gateway can confirm its frontier, or the log does not exist yet.
            Refused: the gateways have a different log than before.
        """
        frontier = wait_for_log(self._reads, limits.KAFKA_S)
        if frontier.stale:
            raise Unavailable(
                f"{self._url}: the gateways that answer have no connection to a majority of their group. They have the log up to "
                f"offset {frontier.offset}, and other gateways may have more"
            )
        return frontier.log, frontier.start, frontier.offset

    def read(self, uuid: str, start: int) -> Reader:
        """Return a reader that follows the log from an offset.

        Raises:
            Unavailable: no gateway answers.
            OffsetOutOfRange: the offset is before the start of the log, or after the frontier of the answering gateway.
            ConfigError: the gateways have a different log.
        """
        reader = Reader(self._url, self._topics, start=start, follow=True, columns=COLUMNS)
        if reader.log != uuid:
            reader.close()
            raise ConfigError(f"{self._url}: its gateways have log {reader.log}, but had {uuid} before: restart the connector")
        return reader


def gateway_check(url: str) -> Callable[[], object]:
    """Return a function that connects to a gateway, and raises `Unavailable` if no gateway answers."""

    def check() -> object:
        with AdminClient(url, timeout=limits.KAFKA_S) as control:
            return control.welcome()

    return check


def producer_opener(url: str) -> Callable[[str, int], Producer]:
    """Return a function that opens producers for kafka-in; a full buffer raises an error instead of blocking."""

    def open_producer(name: str, buffer_bytes: int) -> Producer:
        return Producer(url, producer=name, buffer_bytes=buffer_bytes, on_full="raise", delivery_timeout=limits.DELIVERY_S)

    return open_producer


def progress_committer(url: str) -> Callable[[str, str, Callable[[bytes], bytes]], bytes]:
    """Return a function that commits a producer's progress without a record (`tutti.transactions.commit_progress`)."""
    return partial(commit_progress, url, connect_timeout=limits.KAFKA_S)
