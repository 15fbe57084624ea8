"""What no log takes: kept in files, one a record, named by where it came from, so that a second time changes nothing."""

from __future__ import annotations

import base64
import hashlib
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import orjson

from connectors.kafka import limits
from connectors.kafka.records import headers_of
from gateway.errors import ConfigError, TuttiError

if TYPE_CHECKING:
    from connectors.kafka.records import Poison


_TOPIC_CHARACTERS = 150  # of a file's name, which has 255


class Source(NamedTuple):
    """Where records came from: Kafka's id, that of the topic, and its name."""

    cluster: str
    topic_id: str
    topic: str


class Full(TuttiError):
    """There is no room for another record in quarantine: somebody has to look at those that are there."""


class Quarantine:
    """A directory of records with the reason why each is there."""

    def __init__(self, directory: str) -> None:
        """Make it.

        Raises:
            ConfigError: it cannot be written.
        """
        self._directory = Path(directory)
        try:
            self._directory.mkdir(parents=True, exist_ok=True)
            self.count = self._counted()
        except OSError as error:
            raise ConfigError(f"quarantine {directory}: {error.strerror}: name a directory that can be written") from error

    def put(self, source: Source, poison: Poison) -> None:
        """Keep a record; it is on the disk when this returns.

        Raises:
            Full: there is no room for another one.
            OSError: the disk does not take it.
        """
        message = poison.message
        # The ids, as a digest: another Kafka, or a topic that was made anew, has other records at the same offset.
        digest = hashlib.sha256("/".join(source).encode()).hexdigest()[:12]
        path = self._directory / f"{source.topic[:_TOPIC_CHARACTERS]}-{message.partition()}-{message.offset()}-{digest}.json"
        if path.exists():
            return
        if self.count >= limits.QUARANTINED_MAX:
            self.count = self._counted()  # somebody may have moved some away
        if self.count >= limits.QUARANTINED_MAX:
            raise Full(
                f"{source.topic}: {self.count} records are in quarantine in {self._directory}, as many as may be: look at "
                f"the reasons there, and move the files away"
            )
        half = path.with_suffix(".part")
        with half.open("wb") as file:
            file.write(orjson.dumps(_told(source, poison), option=orjson.OPT_APPEND_NEWLINE))
            file.flush()
            os.fsync(file.fileno())
        half.rename(path)
        directory = os.open(self._directory, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(directory)
        finally:
            os.close(directory)
        self.count += 1

    def _counted(self) -> int:
        return sum(1 for _ in self._directory.glob("*.json"))


def _told(source: Source, poison: Poison) -> dict[str, Any]:
    message = poison.message
    try:
        headers = [[name, _base64(value)] for name, value in headers_of(message)]
    except UnicodeDecodeError:
        headers = None  # no client of Python reads them
    return {
        "reason": poison.reason,
        "cluster": source.cluster,
        "topic": source.topic,
        "topic_id": source.topic_id,
        "partition": message.partition(),
        "offset": message.offset(),
        "timestamp_ms": message.timestamp()[1],
        "key_base64": _base64(message.key()),
        "value_base64": _base64(message.value()),
        "headers": headers,
    }


def _base64(data: bytes | str | None) -> str | None:
    if data is None:
        return None
    return base64.b64encode(data.encode() if isinstance(data, str) else data).decode()
