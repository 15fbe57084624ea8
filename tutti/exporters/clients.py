"""The clients that one exporter reads, and the metrics that the fields of their statistics define."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Iterator
from dataclasses import fields
from typing import NamedTuple, Protocol

from tutti.common.stats import ProducerStats, ReaderStats
from tutti.data.names import is_nameless
from tutti.errors import UsageError

Stats = ProducerStats | ReaderStats


class Client(Protocol):
    """The part of a `Producer` or a `Reader` that an exporter uses."""

    @property
    def closed(self) -> bool:
        """True if the exporter must drop the client."""

    def stats(self) -> Stats:
        """Return the current statistics. Called in the thread of the exporter."""


class Metric(NamedTuple):
    """A metric: one field of the statistics.

    Attributes:
        role: "producer" or "reader".
        field: name of the field.
        kind: "counter" or "gauge".
        unit: "records", "bytes", "seconds", or empty for a plain number.
        about: one sentence about the field.
    """

    role: str
    field: str
    kind: str
    unit: str
    about: str


def _metrics(role: str, kind: type[Stats]) -> tuple[Metric, ...]:
    about = ((one.name, one.metadata) for one in fields(kind))
    return tuple(Metric(role, name, found["kind"], found["unit"], found["about"]) for name, found in about if "kind" in found)


METRICS = (*_metrics("producer", ProducerStats), *_metrics("reader", ReaderStats))


class Clients:
    """The open clients of one exporter, by role and name. Closed clients, and clients that the application dropped, disappear."""

    def __init__(self) -> None:
        """Begin without clients."""
        self._lock = threading.Lock()
        self._clients: dict[tuple[str, str], weakref.ref[Client]] = {}

    def add(self, client: Client, name: str | None) -> None:
        """Add a client under `name`; by default, under its own name.

        Raises:
            UsageError: `client` is not a client, or another open client of the same role has this name.
        """
        if not callable(getattr(client, "stats", None)):
            raise UsageError(f"only a producer or a reader has metrics, not {client!r}")
        stats = client.stats()
        # A random name would begin new time series at each start of the application.
        own = stats.name if stats.name and not is_nameless(stats.name) else _role(stats)
        key = _role(stats), own if name is None else name
        with self._lock:
            known = self._open_client(key)
            if known is not None and known is not client:
                raise UsageError(
                    f"metrics of a {key[0]} with the name {key[1]!r} are registered already: close that {key[0]} first, or give "
                    "this one another label with register(..., name=...)"
                )
            self._clients[key] = weakref.ref(client)

    def _open_client(self, key: tuple[str, str]) -> Client | None:
        """Return a registered client; None if it is closed, dropped or unknown."""
        reference = self._clients.get(key)
        client = reference() if reference is not None else None
        return None if client is None or client.closed else client

    def _statistics(self) -> list[tuple[str, str, Stats]]:
        """Return (role, name, statistics) of each open client, and drop closed clients."""
        with self._lock:
            found = {key: client for key in self._clients if (client := self._open_client(key)) is not None}
            self._clients = {key: weakref.ref(client) for key, client in found.items()}
        return [(role, name, client.stats()) for (role, name), client in found.items()]

    def values(self) -> Iterator[tuple[Metric, dict[str, float]]]:
        """Yield each metric that has a value now, with its values by the names of the clients. Read each client once."""
        statistics = self._statistics()
        for metric in METRICS:
            values = {name: getattr(stats, metric.field) for role, name, stats in statistics if role == metric.role}
            known = {name: float(value) for name, value in values.items() if value is not None}
            if known:
                yield metric, known


def _role(stats: Stats) -> str:
    return "producer" if isinstance(stats, ProducerStats) else "reader"
