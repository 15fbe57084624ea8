"""The gateways' side: the committed log for the way out, producers for the way in."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from tutti.errors import ConfigError, Unavailable
from tutti.io.admin import Control
from tutti.producer import Producer
from tutti.reader import Reader
from tutti.sources.flight import Reads
from tutti.sources.source import begun
from tutti.transactions import commit_progress
from tutti_connect.kafka import limits
from tutti_connect.kafka.sink.messages import COLUMNS


class CommittedLog:
    """The log of a group of gateways, or some topics of it."""

    def __init__(self, url: str, topics: Sequence[str]) -> None:
        """Prepare; nothing is connected yet. No topics are all."""
        self._url, self._topics = url, list(topics) or None
        self._reads = Reads(url)

    def span(self) -> tuple[str, int, int]:
        """Its uuid, the first offset that it holds, and where what is committed ends.

        Raises:
            Unavailable: no gateway answers, or none can confirm where that is, or no log has begun.
            Refused: the gateways have another log than before.
        """
        frontier = begun(self._reads, limits.KAFKA_S)
        if frontier.stale:
            raise Unavailable(
                f"{self._url}: the log is committed up to {frontier.offset} at gateways that are cut off from a majority of their "
                "group: others may have more"
            )
        return frontier.log, frontier.start, frontier.offset

    def read(self, uuid: str, start: int) -> Reader:
        """Follow it from an offset on.

        Raises:
            Unavailable: no gateway answers.
            OffsetOutOfRange: it begins behind that offset, or ends before it at the gateway that answers.
            ConfigError: it is another log.
        """
        reader = Reader(self._url, self._topics, start=start, follow=True, columns=COLUMNS)
        if reader.log != uuid:
            reader.close()
            raise ConfigError(f"{self._url}: its gateways have log {reader.log}, and had {uuid} before: start the connector again")
        return reader


def gateway_asker(url: str) -> Callable[[], object]:
    """What asks a gateway who it is, for one that answers."""

    def asked() -> object:
        with Control(url, timeout=limits.KAFKA_S) as control:
            return control.welcome()

    return asked


def producer_opener(url: str) -> Callable[[str, int], Producer]:
    """What opens producers for the way in: each says rather than waits when its buffer is full."""

    def opened(name: str, buffer_bytes: int) -> Producer:
        return Producer(url, producer=name, buffer_bytes=buffer_bytes, on_full="raise", delivery_timeout=limits.DELIVERY_S)

    return opened


def progress_committer(url: str) -> Callable[[str, str, Callable[[bytes], bytes]], bytes]:
    """What commits a producer's progress without a record (`tutti.transactions.commit_progress`)."""
    return partial(commit_progress, url, connect_timeout=limits.KAFKA_S)
